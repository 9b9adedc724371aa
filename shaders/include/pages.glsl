// KV pages of one layer. A page holds PAGE_TOKENS positions of every kv head: first all K, then all
// V.
//
//     K  [kv_heads][HEAD_DIM / KV_QUAD][PAGE_TOKENS] quads: neighbouring positions side by side,
//     for lanes
//        that each own a position
//     V  [kv_heads][PAGE_TOKENS][HEAD_DIM / KV_QUAD] quads: neighbouring dimensions side by side,
//     for
//        lanes that each own dimensions
//
// A quad is 128 bits: 8 f16 or 4 f32. The including shader defines HEAD_DIM and KV_HALF.

const uint PAGE_TOKENS = 32; // src/kv_cache/layout.rs: PAGE_TOKENS
const uint KV_QUAD = KV_HALF == 1 ? 8 : 4;
const uint KV_WORDS = KV_HALF == 1 ? HEAD_DIM / 2 : HEAD_DIM; // of one head at one position

uint page_words(uint kv_heads) { return 2 * kv_heads * PAGE_TOKENS * KV_WORDS; }

// Word that holds dimension `dim` (even with f16) of K.
uint k_word(uint page, uint kv_heads, uint kv_head, uint slot, uint dim) {
    uint quad = (kv_head * (HEAD_DIM / KV_QUAD) + dim / KV_QUAD) * PAGE_TOKENS + slot;
    return page * page_words(kv_heads) + quad * 4 + dim % KV_QUAD / (KV_QUAD / 4);
}

// Word that holds dimension `dim` (even with f16) of V.
uint v_word(uint page, uint kv_heads, uint kv_head, uint slot, uint dim) {
    uint row = (kv_heads + kv_head) * PAGE_TOKENS + slot;
    return page * page_words(kv_heads) + row * KV_WORDS + dim / (KV_QUAD / 4);
}
