// KV pages of one layer. A page holds PAGE_TOKENS positions: for each kv head its K, then its V;
// behind all heads the scales of KV_Q8_0.
//
//     [kv_heads] of
//         K  [KV_WORDS / KEY_WORDS][PAGE_TOKENS][KEY_WORDS] words: neighbouring positions side by
//            side, for lanes that each own a position
//         V  [PAGE_TOKENS][KV_WORDS] words, for lanes that each own dimensions
//     scales of K  [kv_heads][SCALE_WORDS][PAGE_TOKENS] words of two f16, of 32 dimensions each
//     scales of V  [kv_heads][PAGE_TOKENS][SCALE_WORDS]
//
// A word is one f32, two f16 or four bytes. The including shader defines HEAD_DIM, KV_FORMAT (one
// of src/kernels/pages.rs: KvFormat) and KEY_WORDS: 4 where lanes load by themselves, 1 where they
// load together.

const uint KV_F32 = 0;
const uint KV_F16 = 1;
const uint KV_Q8_0 = 2;

const uint PAGE_TOKENS = 32; // src/kernels/pages.rs: PageLayout::TOKENS
const uint KV_BLOCK = 32;    // dimensions that share a scale
const uint KV_PER_WORD = 1u << KV_FORMAT;
const uint KV_WORDS = HEAD_DIM / KV_PER_WORD; // of one head at one position
const uint SCALE_WORDS = KV_FORMAT == KV_Q8_0 ? (HEAD_DIM + 63) / 64 : 0;

uint page_words(uint kv_heads) { return 2 * kv_heads * PAGE_TOKENS * (KV_WORDS + SCALE_WORDS); }

// Word that holds dimension `dim` of K, the first of its word.
uint k_word(uint page, uint kv_heads, uint kv_head, uint slot, uint dim) {
    uint word = dim / KV_PER_WORD;
    uint part = (2 * kv_head * (KV_WORDS / KEY_WORDS) + word / KEY_WORDS) * PAGE_TOKENS + slot;
    return page * page_words(kv_heads) + part * KEY_WORDS + word % KEY_WORDS;
}

// Word that holds dimension `dim` of V, the first of its word.
uint v_word(uint page, uint kv_heads, uint kv_head, uint slot, uint dim) {
    uint row = (2 * kv_head + 1) * PAGE_TOKENS + slot;
    return page * page_words(kv_heads) + row * KV_WORDS + dim / KV_PER_WORD;
}

// Word with the scales of 64 dimensions of K, from 64 * `pair` on.
uint k_scale_word(uint page, uint kv_heads, uint kv_head, uint slot, uint pair) {
    uint behind = page * page_words(kv_heads) + 2 * kv_heads * PAGE_TOKENS * KV_WORDS;
    return behind + (kv_head * SCALE_WORDS + pair) * PAGE_TOKENS + slot;
}

// The same of V.
uint v_scale_word(uint page, uint kv_heads, uint kv_head, uint slot, uint pair) {
    uint behind = page * page_words(kv_heads) + 2 * kv_heads * PAGE_TOKENS * KV_WORDS;
    return behind + ((kv_heads + kv_head) * PAGE_TOKENS + slot) * SCALE_WORDS + pair;
}

// The four bytes of a word of KV_Q8_0, signed.
vec4 kv_codes(uint word) {
    ivec4 codes = ivec4(int(word) << 24, int(word) << 16, int(word) << 8, int(word));
    return vec4(codes >> 24);
}
