//! Who owns which page: pure bookkeeping, without a device.
//!
//! A page has one owner, or several that were forked from one another. It is clean and free, owned,
//! soiled: given back by its last owner and not zeroed yet, or fresh: not zeroed since the pool's
//! memory was had from the driver.

/// A page's number in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageId(pub(super) u32);

impl PageId {
    /// The number, as block tables hold it.
    #[must_use]
    pub fn index(self) -> u32 {
        self.0
    }
}

/// The pages of a pool, by state.
#[derive(Debug)]
pub(super) struct PagePool {
    /// Owners of each page.
    owners: Vec<u32>,
    /// Clean; taken from the end.
    free: Vec<PageId>,
    /// Given back and not yet zeroed.
    soiled: Vec<PageId>,
    /// Never owned since their memory was had; taken from the end.
    fresh: Vec<PageId>,
}

impl PagePool {
    /// A pool of fresh pages.
    pub(super) fn new(pages: u32) -> Self {
        let fresh = (0..pages).rev().map(PageId).collect(); // page 0 goes first
        Self { owners: vec![0; pages as usize], free: Vec::new(), soiled: Vec::new(), fresh }
    }

    /// Pages that can be taken, at once or once they are zeroed.
    pub(super) fn free_pages(&self) -> usize {
        self.free.len() + self.soiled.len() + self.fresh.len()
    }

    /// Pages that can be taken at once.
    pub(super) fn clean_pages(&self) -> usize {
        self.free.len()
    }

    /// Pages to zero.
    pub(super) fn soiled(&self) -> &[PageId] {
        &self.soiled
    }

    /// Pages that nobody had.
    pub(super) fn fresh_pages(&self) -> usize {
        self.fresh.len()
    }

    /// Puts up to `count` fresh pages among the soiled.
    pub(super) fn break_in(&mut self, count: usize) {
        let kept = self.fresh.len().saturating_sub(count);
        self.soiled.extend(self.fresh.drain(kept..));
    }

    /// The soiled pages have been zeroed.
    pub(super) fn cleaned(&mut self) {
        self.soiled.sort_unstable_by_key(|page| std::cmp::Reverse(*page)); // the first go first
        self.free.append(&mut self.soiled);
    }

    /// Takes `count` clean pages for one owner; none if there are fewer.
    pub(super) fn take(&mut self, count: usize) -> Option<Vec<PageId>> {
        let first = self.free.len().checked_sub(count)?;
        let taken: Vec<PageId> = self.free.drain(first..).rev().collect();
        for page in &taken {
            let owners = &mut self.owners[page.0 as usize];
            assert_eq!(*owners, 0, "a free page has no owner");
            *owners = 1;
        }
        Some(taken)
    }

    /// Adds an owner to a page that has one.
    pub(super) fn share(&mut self, page: PageId) {
        let owners = &mut self.owners[page.0 as usize];
        assert!(*owners > 0, "only what is owned can be shared");
        *owners += 1;
    }

    /// True if a page has more than one owner.
    pub(super) fn is_shared(&self, page: PageId) -> bool {
        self.owners[page.0 as usize] > 1
    }

    /// Makes the pool one of `pages` pages, of which those without an owner are fresh. Owned ones
    /// past the end move to free places: old number and new of every owned page, by old number.
    ///
    /// # Panics
    /// If more pages are owned: a bug of the caller.
    pub(super) fn resize(&mut self, pages: usize) -> Vec<(PageId, PageId)> {
        let before = std::mem::replace(&mut self.owners, vec![0; pages]);
        let owned = |at: &usize| before[*at] > 0;
        let kept = before.len().min(pages);
        let mut places = (0..pages).filter(|at| *at >= kept || before[*at] == 0);
        let moves: Vec<(usize, usize)> = (0..before.len())
            .filter(owned)
            .map(|from| {
                let to = if from < pages { Some(from) } else { places.next() };
                (from, to.expect("the caller left no more pages owned"))
            })
            .collect();
        for (from, to) in &moves {
            self.owners[*to] = before[*from];
        }
        let all = (0..pages as u32).rev().map(PageId);
        self.fresh = all.filter(|page| self.owners[page.0 as usize] == 0).collect();
        self.free.clear();
        self.soiled.clear();
        let number = |at: usize| PageId(at as u32);
        moves.into_iter().map(|(from, to)| (number(from), number(to))).collect()
    }

    /// Takes an owner from a page; the last one leaves it soiled.
    pub(super) fn give_back(&mut self, page: PageId) {
        let owners = &mut self.owners[page.0 as usize];
        assert!(*owners > 0, "a page is given back once by each owner");
        *owners -= 1;
        if *owners == 0 {
            self.soiled.push(page);
        }
    }
}
