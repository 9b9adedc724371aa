// Sliced weight formats: how the words of a sliced matrix (src/tensor/sliced.rs) become weights.
//
// A word holds the same column's bits of all eight rows of a group, so one load of one address
// serves every lane, and a lane's own weight is a mask away. Where the masked bits stay in place
// (SHIFTED=0), lane l sees its weight times a power of two that its scale takes back; the top bit
// of such a word is stored flipped, so that the lane that owns it sees a signed number: conversion
// from signed integers is the fast one.
//
// The including shader defines LANES = 8, `quads_at(i)` and `words_at(i)`: quad and word i of the
// matrix.

#define Q8_0 0
#define Q4_0 1
#define Q4_1 2
#define Q5_0 3
#define Q5_1 4
#define Q4_K 5
#define Q5_K 6
#define Q6_K 7

#if FORMAT == Q4_0
#define UNIT_QUADS 9
#define BITS_QUAD 1
#elif FORMAT == Q4_1
#define UNIT_QUADS 10
#define BITS_QUAD 2
#elif FORMAT == Q5_0
#define UNIT_QUADS 11
#define HIGH_QUAD 1
#define BITS_QUAD 3
#elif FORMAT == Q5_1
#define UNIT_QUADS 12
#define HIGH_QUAD 2
#define BITS_QUAD 4
#elif FORMAT == Q8_0
#define UNIT_QUADS 17
#define BITS_QUAD 1
#elif FORMAT == Q4_K
#define UNIT_QUADS 72
#define BITS_QUAD 8
#elif FORMAT == Q5_K
#define UNIT_QUADS 88
#define HIGH_QUAD 8
#define BITS_QUAD 24
#elif FORMAT == Q6_K
#define UNIT_QUADS 105
#define HIGH_QUAD 9
#define BITS_QUAD 41
#else
#error "unknown FORMAT"
#endif

#define SUPERBLOCK (FORMAT == Q4_K || FORMAT == Q5_K || FORMAT == Q6_K)
#define BLOCKS_PER_UNIT (SUPERBLOCK ? 8 : 1)
// Q6_K has a scale for every 16 weights, the others for every 32.
#define SCALES (FORMAT == Q6_K ? 2 : 1)
#define SHIFTED (FORMAT == Q5_0 || FORMAT == Q5_1 || FORMAT == Q5_K || FORMAT == Q6_K)

// What a lane knows of its place: computed once.
struct Slice {
    uint lane;
    bool odd;         // bits 0, 1 and 2 of the lane's number
    bool second_pair;
    bool second_half;
    uvec4 mask;       // its bits of a word
    float unscale;    // takes back the power of two
    float zero_point; // of its masked weights
};

Slice slice_of(uint lane) {
    Slice s;
    s.lane = lane;
    s.odd = (lane & 1) != 0;
    s.second_pair = (lane & 2) != 0;
    s.second_half = (lane & 4) != 0;
#if FORMAT == Q8_0
    s.mask = uvec4(0xffu << (8 * (lane & 3)));
    s.unscale = 1.0 / float(1 << (8 * (lane & 3)));
    s.zero_point = (lane & 3) == 3 ? 0.0 : -128.0;
#elif SHIFTED
    s.mask = uvec4(15);
    s.unscale = 1.0;
    s.zero_point = FORMAT == Q5_0 ? -16.0 : FORMAT == Q6_K ? -32.0 : 0.0;
#else
    s.mask = uvec4(15u << (4 * lane));
    s.unscale = 1.0 / float(1 << (4 * lane));
    s.zero_point = (lane == 7 ? 8.0 : 0.0) - (FORMAT == Q4_0 ? 8.0 : 0.0);
#endif
    return s;
}

// The lane's word of eight.
uint word_of_eight(Slice s, uint quad) {
    const uvec4 a = quads_at(quad);
    const uvec4 b = quads_at(quad + 1);
    const uvec4 half_words = s.second_half ? b : a;
    const uvec2 pair = s.second_pair ? half_words.zw : half_words.xy;
    return s.odd ? pair.y : pair.x;
}

// The lane's half word of four words.
uint half_of_four(Slice s, uint quad) {
    const uvec4 a = quads_at(quad);
    const uvec2 pair = s.second_half ? a.zw : a.xy;
    const uint word = s.second_pair ? pair.y : pair.x;
    return s.odd ? word >> 16 : word & 0xffffu;
}

// What the blocks of a unit share: scale and minimum of the unit.
vec2 unit_head(Slice s, uint unit) {
#if FORMAT == Q4_1 || FORMAT == Q5_1 || FORMAT == Q4_K || FORMAT == Q5_K
    return unpackHalf2x16(word_of_eight(s, unit));
#else
    return vec2(unpackHalf2x16(half_of_four(s, unit)).x, 0.0);
#endif
}

// Factor of the products with what weights_at gives, and of the sum of the activations, for weights
// 16 part .. of block `sub`.
vec2 block_scale(Slice s, vec2 head, uint unit, uint sub, int part) {
#if FORMAT == Q4_K || FORMAT == Q5_K
    const uint word = 4 * unit + 8 + 3 * sub; // behind the head's eight words
    const uint low = words_at(word);
    const uint min_low = words_at(word + 1);
    const uint high = words_at(word + 2) >> (2 * s.lane);
    const uint scale = (low >> (4 * s.lane) & 15) | (high & 3) << 4;
    const uint min = (min_low >> (4 * s.lane) & 15) | (high >> 16 & 3) << 4;
    const float d = head.x * float(int(scale));
    return vec2(d * s.unscale, d * s.zero_point - head.y * float(int(min)));
#elif FORMAT == Q6_K
    const uint at = 4 * (unit + 1 + sub) + 2 * part;
    const uint word = s.second_half ? words_at(at + 1) : words_at(at);
    const float d = head.x * float(int(word << (24 - 8 * (s.lane & 3))) >> 24);
    return vec2(d, d * s.zero_point);
#elif FORMAT == Q4_1 || FORMAT == Q5_1
    return vec2(head.x * s.unscale, head.x * s.zero_point + head.y);
#else
    return vec2(head.x * s.unscale, head.x * s.zero_point);
#endif
}

// Columns 4 at .. of block `sub`, as whole numbers: the lane's weights before block_scale.
vec4 weights_at(Slice s, uint unit, uint sub, uint at) {
#if FORMAT == Q8_0
    const uvec4 low = quads_at(unit + BITS_QUAD + 2 * at);
    const uvec4 high = quads_at(unit + BITS_QUAD + 2 * at + 1);
    return vec4(ivec4((s.second_half ? high : low) & s.mask));
#else
    const uvec4 bits = quads_at(unit + BITS_QUAD + 8 * sub + at);
#if !SHIFTED
    return vec4(ivec4(bits & s.mask));
#elif FORMAT == Q6_K
    // A word has the bit pairs of two columns: two words for these four.
    const uint word = 4 * (unit + HIGH_QUAD) + 16 * sub + 2 * at;
    const uvec2 high = uvec2(words_at(word), words_at(word + 1)) >> (2 * s.lane);
    const uvec4 fifth = uvec4(high.x << 4, high.x >> 12, high.y << 4, high.y >> 12) & 48;
    return vec4(ivec4((bits >> (4 * s.lane) & s.mask) | fifth));
#else
    const uint high = words_at(4 * (unit + HIGH_QUAD) + 8 * sub + at) >> s.lane;
    const uvec4 fifth = uvec4(high << 4, high >> 4, high >> 12, high >> 20) & 16;
    return vec4(ivec4((bits >> (4 * s.lane) & s.mask) | fifth));
#endif
#endif
}
