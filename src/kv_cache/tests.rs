use super::*;
use crate::kernels::KvFormat;
use crate::reference::ReferenceExecutor;

fn cache(executor: &mut ReferenceExecutor) -> KvCache {
    let layout = PageLayout { kv_heads: 1, head_dim: 32, format: KvFormat::F16, key_words: 4 };
    let config = KvConfig { layout, layers: 2, context_tokens: 96, tokens_max: 128, leases_max: 3 };
    KvCache::new(executor, config).expect("memory")
}

fn fill(executor: &mut ReferenceExecutor, cache: &KvCache, page: PageId, byte: u8) {
    for layer in 0..2 {
        let slice = cache.page(layer, page);
        executor
            .write(slice.buffer, slice.offset, slice.bytes as usize, &mut |out| out.fill(byte))
            .expect("write");
    }
}

/// Every byte of the page in every layer, which all are the same.
fn byte_of(executor: &mut ReferenceExecutor, cache: &KvCache, page: PageId) -> u8 {
    let mut bytes = vec![1; cache.page(0, page).bytes as usize];
    let mut found = Vec::new();
    for layer in 0..2 {
        let slice = cache.page(layer, page);
        executor.read(slice.buffer, slice.offset, &mut bytes).expect("read");
        found.extend_from_slice(&bytes);
    }
    assert!(found.iter().all(|byte| *byte == found[0]), "page {page:?} is of one piece");
    found[0]
}

#[test]
fn released_pages_are_zeroed_before_they_are_leased_again() {
    let mut executor = ReferenceExecutor::new();
    let mut cache = cache(&mut executor);
    let mut lease = cache.lease().expect("a table");
    cache.grow(&mut executor, &mut lease, 0, 96).expect("device").expect("pages");
    let soiled = lease.pages().to_vec();
    soiled.iter().for_each(|page| fill(&mut executor, &cache, *page, 0xa5));
    cache.release(lease);
    let mut next = cache.lease().expect("a table");
    cache.grow(&mut executor, &mut next, 0, 96).expect("device").expect("pages");
    assert!(next.pages().iter().any(|page| soiled.contains(page)), "pages come back");
    for page in next.pages() {
        assert_eq!(byte_of(&mut executor, &cache, *page), 0, "page {page:?}");
    }
    cache.release(next);
}

#[test]
fn pages_that_nobody_had_are_zeroed_as_they_are_leased_and_no_sooner() {
    let mut executor = ReferenceExecutor::new();
    let layout = PageLayout { kv_heads: 1, head_dim: 32, format: KvFormat::F16, key_words: 4 };
    let pages = 2 * FRESH_PAGES;
    let tokens_max = pages * PageLayout::TOKENS as usize;
    let context_tokens = tokens_max;
    let config = KvConfig { layout, layers: 2, context_tokens, tokens_max, leases_max: 1 };
    let mut cache = KvCache::new(&mut executor, config).expect("memory");
    let byte =
        |executor: &mut _, cache: &_, page: usize| byte_of(executor, cache, PageId(page as u32));
    cache.clean(&mut executor).expect("nothing was given back");
    assert_ne!(byte(&mut executor, &cache, 0), 0, "as the driver gave it");
    assert_eq!((cache.pages_free(), cache.pages_soiled()), (pages, 0));
    let mut lease = cache.lease().expect("a table");
    cache.grow(&mut executor, &mut lease, 0, 1).expect("device").expect("a page");
    assert_eq!(lease.pages(), [PageId(0)]);
    let zeroed: Vec<bool> = (0..pages).map(|at| byte(&mut executor, &cache, at) == 0).collect();
    assert_eq!(zeroed, [[true; FRESH_PAGES], [false; FRESH_PAGES]].concat(), "a few at once");
    assert_eq!((cache.pages_free(), cache.pages_soiled()), (pages - 1, 0));
    cache.grow(&mut executor, &mut lease, 0, tokens_max).expect("device").expect("all pages");
    assert!((0..pages).all(|at| byte(&mut executor, &cache, at) == 0));
    cache.release(lease);
}

#[test]
fn pages_have_one_owner_and_a_full_pool_says_so() {
    let mut executor = ReferenceExecutor::new();
    let mut cache = cache(&mut executor);
    let (mut a, mut b) = (cache.lease().expect("table"), cache.lease().expect("table"));
    cache.grow(&mut executor, &mut a, 0, 70).expect("device").expect("three pages");
    cache.grow(&mut executor, &mut b, 0, 32).expect("device").expect("one page");
    let refused = cache.grow(&mut executor, &mut b, 32, 33).expect("device");
    assert_eq!(refused, Err(LeaseError::NoPages { wanted_pages: 1, free_pages: 0 }));
    assert!(a.pages().iter().all(|page| !b.pages().contains(page)));
    cache.shrink(&mut a, 64);
    cache.grow(&mut executor, &mut b, 32, 33).expect("device").expect("the page given back");
    assert_eq!(cache.tokens_free(), 0);
    cache.release(a);
    cache.release(b);
    assert_eq!(cache.tokens_free(), 128);
}

#[test]
fn a_fork_shares_pages_until_one_side_writes() {
    let mut executor = ReferenceExecutor::new();
    let mut cache = cache(&mut executor);
    let mut a = cache.lease().expect("a table");
    cache.grow(&mut executor, &mut a, 0, 40).expect("device").expect("two pages");
    let pages = a.pages().to_vec();
    fill(&mut executor, &cache, pages[0], 1);
    fill(&mut executor, &cache, pages[1], 2);
    let mut b = cache.fork(&mut executor, &a, 40).expect("device").expect("a table");
    assert_eq!(b.pages(), pages, "nothing is copied yet");
    assert_eq!(cache.pages_available(), 2);
    // The fork writes position 40: the page that has it is copied, the one before stays shared.
    cache.grow(&mut executor, &mut b, 40, 41).expect("device").expect("a copy");
    assert_eq!(b.pages()[0], pages[0]);
    assert_ne!(b.pages()[1], pages[1]);
    assert_eq!(byte_of(&mut executor, &cache, b.pages()[1]), 2);
    fill(&mut executor, &cache, b.pages()[1], 3);
    assert_eq!(byte_of(&mut executor, &cache, pages[1]), 2, "the origin has its own");
    // The origin goes back to position 32 and writes there: no part of the fork's page 0 moves.
    assert!(cache.grow(&mut executor, &mut a, 32, 33).expect("device").is_ok());
    assert_eq!(a.pages(), pages, "its last page is its own by now");
    // And into page 0, which both still read.
    cache.shrink(&mut a, 10);
    cache.grow(&mut executor, &mut a, 10, 11).expect("device").expect("a copy");
    assert_ne!(a.pages()[0], pages[0]);
    assert_eq!(byte_of(&mut executor, &cache, a.pages()[0]), 1);
    cache.release(a);
    assert_eq!(byte_of(&mut executor, &cache, b.pages()[0]), 1, "the fork outlives its origin");
    cache.release(b);
    assert_eq!(cache.tokens_free(), 128);
}

#[test]
fn what_was_read_out_comes_back_as_it_was() {
    let mut executor = ReferenceExecutor::new();
    let mut cache = cache(&mut executor);
    let mut a = cache.lease().expect("a table");
    cache.grow(&mut executor, &mut a, 0, 70).expect("device").expect("pages");
    for (page, byte) in a.pages().to_vec().into_iter().zip(1..) {
        fill(&mut executor, &cache, page, byte);
    }
    let bytes = cache.read_pages(&mut executor, &a, 40).expect("device");
    assert_eq!(bytes.len(), cache.config().bytes_of(40));
    cache.release(a);
    let mut b = cache.lease().expect("a table");
    cache.grow(&mut executor, &mut b, 0, 40).expect("device").expect("pages");
    cache.write_pages(&mut executor, &b, 40, &bytes).expect("device");
    for (page, byte) in b.pages().to_vec().into_iter().zip(1..) {
        assert_eq!(byte_of(&mut executor, &cache, page), byte);
    }
    cache.release(b);
}

#[test]
fn a_pool_that_changes_its_size_keeps_what_is_leased_and_who_shares_it() {
    let mut executor = ReferenceExecutor::new();
    let mut cache = cache(&mut executor);
    let mut gone = cache.lease().expect("table");
    cache.grow(&mut executor, &mut gone, 0, 64).expect("device").expect("two pages");
    let mut lease = cache.lease().expect("table");
    cache.grow(&mut executor, &mut lease, 0, 64).expect("device").expect("two pages");
    for (page, byte) in lease.pages().to_vec().into_iter().zip([7, 9]) {
        fill(&mut executor, &cache, page, byte);
    }
    gone.pages().to_vec().iter().for_each(|page| fill(&mut executor, &cache, *page, 0xa5));
    let mut fork = cache.fork(&mut executor, &lease, 64).expect("device").expect("a table");
    cache.release(gone);
    let before = executor.memory().used_bytes;

    cache.resize(&mut executor, 3, &mut [&mut lease, &mut fork]).expect("device");
    assert_eq!(before - executor.memory().used_bytes, cache.config().page_bytes());
    assert_eq!((cache.config().pages(), cache.pages_free(), cache.pages_soiled()), (3, 1, 0));
    assert_eq!(lease.pages(), fork.pages());
    let bytes = |executor: &mut ReferenceExecutor, cache: &KvCache, lease: &KvLease| {
        lease.pages().iter().map(|page| byte_of(executor, cache, *page)).collect::<Vec<u8>>()
    };
    assert_eq!(bytes(&mut executor, &cache, &lease), [7, 9]);
    let mut table = [0; 8];
    let offset = u64::from(fork.table()) * 3 * 4; // three pages of context
    executor.read(cache.tables().buffer, offset, &mut table).expect("read");
    let numbers: Vec<u8> = fork.pages().iter().flat_map(|page| page.0.to_le_bytes()).collect();
    assert_eq!(table[..], numbers);

    // What was never leased by these is clean, and a shared page is still copied first.
    cache.grow(&mut executor, &mut fork, 60, 64).expect("device").expect("the third page");
    assert_ne!(lease.pages()[1], fork.pages()[1]);
    cache.resize(&mut executor, 5, &mut [&mut fork, &mut lease]).expect("device");
    assert_eq!(bytes(&mut executor, &cache, &lease), [7, 9]);
    assert_eq!(bytes(&mut executor, &cache, &fork), [7, 9]);
    let mut next = cache.lease().expect("table");
    cache.grow(&mut executor, &mut next, 0, 64).expect("device").expect("two pages");
    assert_eq!(bytes(&mut executor, &cache, &next), [0, 0]);
    [lease, fork, next].into_iter().for_each(|lease| cache.release(lease));
    assert_eq!(cache.pages_available(), 5);
}
