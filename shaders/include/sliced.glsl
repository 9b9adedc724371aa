// Sliced weight formats: how the words of a sliced matrix (src/tensor/sliced) become weights.
//
// Sliced bit by bit, a word holds the same column's bits of all eight rows of a group, so one load
// of one address serves every lane, and a lane's own weight is a mask away. Where the masked bits
// stay in place (SHIFTED=0), lane l sees its weight times a power of two that its scale takes back;
// the top bit of such a word is stored flipped, so that the lane that owns it sees a signed number:
// conversion from signed integers is the fast one. Sliced word by word, eight neighbouring words
// are the eight rows', and what they hold is for include/weights.glsl to read.
//
// The matrix is the array of tiles of binding 0 or, where the including shader defines
// TILES_BY_ADDRESS, that at `tile_base`. LANES is 8.

#include "formats.glsl"

// The other types are sliced word by word.
#define BIT_SLICED (FORMAT >= Q8_0 && FORMAT <= Q6_K)

const uint GROUPS = 4;

#if BIT_SLICED
#if FORMAT == Q4_K || FORMAT == Q5_K || FORMAT == Q6_K
#define BLOCKS_PER_UNIT 8
#else
#define BLOCKS_PER_UNIT 1
#endif
// Two halves for each row, or one.
#if FORMAT == Q4_1 || FORMAT == Q5_1 || FORMAT == Q4_K || FORMAT == Q5_K
#define HEAD_QUADS 2
#else
#define HEAD_QUADS 1
#endif
// Q6_K has a scale for every 16 weights, the others for every 32.
#define SCALES (FORMAT == Q6_K ? 2 : 1)
#define SHIFTED (FORMAT == Q5_0 || FORMAT == Q5_1 || FORMAT == Q5_K || FORMAT == Q6_K)

// The units of a tile's groups, part by part as src/tensor/sliced lists them. Loads name members by
// constants wherever they can: a constant offset is part of a load's instruction, where a computed
// index costs three of its own.
struct Blocks {
#if FORMAT == Q4_K || FORMAT == Q5_K
    uint scales[GROUPS][3];
#elif FORMAT == Q6_K
    uvec4 scales[GROUPS];
#endif
#if FORMAT == Q5_0 || FORMAT == Q5_1 || FORMAT == Q5_K
    uint high[GROUPS][8];
#elif FORMAT == Q6_K
    uvec2 high[GROUPS][8];
#endif
#if FORMAT == Q8_0
    uvec4 bits[GROUPS][16];
#else
    uvec4 bits[GROUPS][8];
#endif
};

struct Tile {
    uvec4 head[GROUPS][HEAD_QUADS];
    Blocks blocks[BLOCKS_PER_UNIT];
};
#else
struct Tile {
    uvec4 words[WORDS + 4 * QUADS][GROUPS][2];
};
#endif

#ifdef TILES_BY_ADDRESS
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Tiles { Tile at[]; };
uvec2 tile_base;
#define tile_at(i) Tiles(tile_base).at[i]
#else
layout(std430, binding = 0) readonly buffer Tiles { Tile tiles[]; };
#define tile_at(i) tiles[i]
#endif

// What a lane knows of its place, computed once. Where `lane` is its number in the subgroup, the
// driver's compiler knows its bits, and makes one load of eight words that they choose among.
struct Slice {
    uint lane;
    bool odd;         // bits 0, 1 and 2 of the lane's number
    bool second_pair;
    bool second_half;
#if BIT_SLICED
    uvec4 mask;       // its bits of a word
    float unscale;    // takes back the power of two
    float zero_point; // of its masked weights
#endif
};
Slice slice;

void slice_begin(uint lane) {
    slice.lane = lane;
    slice.odd = (lane & 1) != 0;
    slice.second_pair = (lane & 2) != 0;
    slice.second_half = (lane & 4) != 0;
#if FORMAT == Q8_0
    slice.mask = uvec4(0xffu << (8 * (lane & 3)));
    slice.unscale = 1.0 / float(1 << (8 * (lane & 3)));
    slice.zero_point = (lane & 3) == 3 ? 0.0 : -128.0;
#elif BIT_SLICED && SHIFTED
    slice.mask = uvec4(15);
    slice.unscale = 1.0;
    slice.zero_point = FORMAT == Q5_0 ? -16.0 : FORMAT == Q6_K ? -32.0 : 0.0;
#elif BIT_SLICED
    slice.mask = uvec4(15u << (4 * lane));
    slice.unscale = 1.0 / float(1 << (4 * lane));
    slice.zero_point = (lane == 7 ? 8.0 : 0.0) - (FORMAT == Q4_0 ? 8.0 : 0.0);
#endif
}

// The lane's word of eight.
uint word_of_eight(uvec4 a, uvec4 b) {
    const uvec4 half_words = slice.second_half ? b : a;
    const uvec2 pair = slice.second_pair ? half_words.zw : half_words.xy;
    return slice.odd ? pair.y : pair.x;
}

#if BIT_SLICED
// The lane's half word of four words.
uint half_of_four(uvec4 words) {
    const uvec2 pair = slice.second_half ? words.zw : words.xy;
    const uint word = slice.second_pair ? pair.y : pair.x;
    return slice.odd ? word >> 16 : word & 0xffffu;
}

// What the blocks of a unit share: scale and minimum of the unit.
vec2 unit_head(uint tile, uint group) {
#if HEAD_QUADS == 2
    const uvec4 a = tile_at(tile).head[group][0];
    const uvec4 b = tile_at(tile).head[group][1];
    return unpackHalf2x16(word_of_eight(a, b));
#else
    return vec2(unpackHalf2x16(half_of_four(tile_at(tile).head[group][0])).x, 0.0);
#endif
}

// Factor of the matmuls with what weights_at gives, and of the sum of the activations, for weights
// 16 part .. of block `sub`.
vec2 block_scale(vec2 head, uint tile, uint group, uint sub, int part) {
#if FORMAT == Q4_K || FORMAT == Q5_K
    const uint low = tile_at(tile).blocks[sub].scales[group][0];
    const uint min_low = tile_at(tile).blocks[sub].scales[group][1];
    const uint high = tile_at(tile).blocks[sub].scales[group][2] >> (2 * slice.lane);
    const uint scale = (low >> (4 * slice.lane) & 15) | (high & 3) << 4;
    const uint min = (min_low >> (4 * slice.lane) & 15) | (high >> 16 & 3) << 4;
    const float d = head.x * float(int(scale));
    return vec2(d * slice.unscale, d * slice.zero_point - head.y * float(int(min)));
#elif FORMAT == Q6_K
    const uvec4 both = tile_at(tile).blocks[sub].scales[group];
    const uvec2 words = part == 0 ? both.xy : both.zw;
    const uint word = slice.second_half ? words.y : words.x;
    const float d = head.x * float(int(word << (24 - 8 * (slice.lane & 3))) >> 24);
    return vec2(d, d * slice.zero_point);
#elif FORMAT == Q4_1 || FORMAT == Q5_1
    return vec2(head.x * slice.unscale, head.x * slice.zero_point + head.y);
#else
    return vec2(head.x * slice.unscale, head.x * slice.zero_point);
#endif
}

// Columns 4 at .. of block `sub`, as whole numbers: the lane's weights before block_scale.
vec4 weights_at(uint tile, uint group, uint sub, uint at) {
#if FORMAT == Q8_0
    const uvec4 low = tile_at(tile).blocks[sub].bits[group][2 * at];
    const uvec4 high = tile_at(tile).blocks[sub].bits[group][2 * at + 1];
    return vec4(ivec4((slice.second_half ? high : low) & slice.mask));
#else
    const uvec4 bits = tile_at(tile).blocks[sub].bits[group][at];
#if !SHIFTED
    return vec4(ivec4(bits & slice.mask));
#elif FORMAT == Q6_K
    // A word has the bit pairs of two columns: two words for these four.
    const uvec2 high = tile_at(tile).blocks[sub].high[group][at] >> (2 * slice.lane);
    const uvec4 fifth = uvec4(high.x << 4, high.x >> 12, high.y << 4, high.y >> 12) & 48;
    return vec4(ivec4((bits >> (4 * slice.lane) & slice.mask) | fifth));
#else
    const uint high = tile_at(tile).blocks[sub].high[group][at] >> slice.lane;
    const uvec4 fifth = uvec4(high << 4, high >> 4, high >> 12, high >> 20) & 16;
    return vec4(ivec4((bits >> (4 * slice.lane) & slice.mask) | fifth));
#endif
#endif
}

const vec4 PRESCALE = vec4(1.0);
#else

// Word k of the lane's unit: what include/weights.glsl reads, of tile quad_base, group word_base.
uint lane_word(uint tile, uint group, uint k) {
    return word_of_eight(tile_at(tile).words[k][group][0], tile_at(tile).words[k][group][1]);
}
uvec4 lane_quad(uint tile, uint group, uint i) {
    const uint k = WORDS + 4 * i;
    return uvec4(lane_word(tile, group, k), lane_word(tile, group, k + 1),
        lane_word(tile, group, k + 2), lane_word(tile, group, k + 3));
}
#define WORD(i) lane_word(quad_base, word_base, i)
#define QUAD(i) lane_quad(quad_base, word_base, i)
#define QUAD_WORD(i, c) lane_word(quad_base, word_base, WORDS + 4 * (i) + (c))
#include "weights.glsl"
#endif
