// Weight formats: how the planes of a packed matrix become 32 weights of one row.
//
// A matrix of M rows and K columns is packed in groups of LANES rows (src/tensor/layout). Rows
// are cut into units of UNIT weights; a unit takes QUADS words of 128 bits and WORDS words of 32
// bits, interleaved by lane, so that the lanes of a workgroup load neighbouring addresses:
//
//     quads[((group * units + unit) * QUADS + i) * LANES + lane]
//     words[((group * units + unit) * WORDS + i) * LANES + lane]
//
// A quantised weight is scale * u + bias with u an unsigned byte; scale and bias hold for 16 or 32
// weights. Byte i of word w of a block is u of weight 4 w + i. Types whose blocks number vectors of
// a grid come as codes of two to four bits, of which u is a simple function.
//
// An including shader that reads its words otherwise defines WORD(i), QUAD(i) and QUAD_WORD(i, c),
// for what the functions here get as quad_base and word_base.

#include "formats.glsl"

#ifndef WORD
#define WORD(i) words[word_base + (i) * LANES]
#define QUAD(i) quads[quad_base + (i) * LANES]
#define QUAD_WORD(i, c) quads[quad_base + (i) * LANES][c]
#endif

#define BLOCKS_PER_UNIT (UNIT / 32)
#define QUANTISED (CODES != FLOATS)
#define CURVED (FORMAT == IQ4_NL || FORMAT == IQ4_XS)
#define IQ2 (FORMAT == IQ2_XXS || FORMAT == IQ2_XS || FORMAT == IQ2_S)
// Some types have a scale for every 16 weights, the others for every 32.
#if FORMAT == Q6_K || FORMAT == Q2_K || FORMAT == Q3_K || FORMAT == IQ1_M \
    || FORMAT == IQ2_XS || FORMAT == IQ2_S
#define SCALES 2
#else
#define SCALES 1
#endif

// What the blocks of a unit share.
struct UnitHead {
    uvec4 quad; // quad 0 where that is no codes; else the words behind the first
    uint word;  // the first word: d, the scales of two blocks
};

#if CURVED
// The values that codes c stand for, -127 to 113 (CURVE of src/tensor/quants/four_bit.rs): the
// polynomial passes all sixteen by less than 0.44, so that rounding gives them exactly. Its
// coefficients are for a c as it stands in its byte, times (1, 2^8, 2^16, 1).
vec4 curve(vec4 c) {
    const vec4 step = vec4(1.0, 1.0 / 256.0, 1.0 / 65536.0, 1.0);
    vec4 y = 0.001586 * (step * step * step * step) * c + 0.031086 * (step * step * step);
    y = y * c - 1.3719 * (step * step);
    y = y * c + 24.174 * step;
    return roundEven(y * c - 126.57);
}

#if SUBGROUPS
// Lane i's values of codes i and 8 + i, with 8 lanes.
float curve_low = 0.0;
float curve_high = 0.0;
#endif
#endif

UnitHead load_unit(uint quad_base, uint word_base) {
    UnitHead head = UnitHead(uvec4(0), 0);
#if CURVED && SUBGROUPS
    curve_low = curve(vec4(int(gl_SubgroupInvocationID & 7))).x;
    curve_high = curve(vec4(int(8 + (gl_SubgroupInvocationID & 7)))).x;
#endif
#if FORMAT == Q2_K || FORMAT == Q3_K || FORMAT == Q4_K || FORMAT == Q5_K || FORMAT == Q6_K \
    || FORMAT == IQ1_M
    head.quad = QUAD(0);
#elif UNIT == 256
#if WORDS >= 2
    head.quad.x = WORD(1);
#endif
#if WORDS >= 3
    head.quad.y = WORD(2);
#endif
#endif
#if QUANTISED && WORDS > 0
    head.word = WORD(0);
#endif
    return head;
}

#if QUANTISED

// The u of 32 weights, four to a word.
struct Block {
    uint u[8];
};

// Splits a word of eight nibbles into the words of its four even and four odd ones.
void split_nibbles(uint nibbles, out uint even, out uint odd) {
    even = nibbles & 0x0f0f0f0fu;
    odd = (nibbles >> 4) & 0x0f0f0f0fu;
}

// Adds bit i of every byte of `high` to every byte of u[i], as bit 4 (fifth) or 2 (third).
void add_fifth_bits(inout Block block, uint high) {
    [[unroll]] for (int i = 0; i < 8; i++) {
        block.u[i] |= (i <= 4 ? high << (4 - i) : high >> (i - 4)) & 0x10101010u;
    }
}
void add_third_bits(inout Block block, uint high) {
    [[unroll]] for (int i = 0; i < 8; i++) {
        block.u[i] |= (i <= 2 ? high << (2 - i) : high >> (i - 2)) & 0x04040404u;
    }
}

// The bit pairs of block `sub`, of which two are in a quad, from quad `first` on.
uvec2 load_pairs(uint quad_base, uint word_base, uint first, uint sub) {
    const uint quad = first + (sub >> 1);
    const uint word = 2 * (sub & 1);
    return uvec2(QUAD_WORD(quad, word), QUAD_WORD(quad, word + 1));
}

// Loads block `sub` of a unit; quad_base and word_base are those of the unit and of this lane.
Block load_block(uint quad_base, uint word_base, uint sub) {
    Block block;
#if CODES == BYTES
    uvec4 a = QUAD(2 * sub);
    uvec4 b = QUAD(2 * sub + 1);
    block.u = uint[8](a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w);
#elif CODES == NIBBLES
    uvec4 q = QUAD(CODES_AT + sub);
    [[unroll]] for (int i = 0; i < 4; i++) {
        split_nibbles(q[i], block.u[2 * i], block.u[2 * i + 1]);
    }
#else
    uvec2 pairs = load_pairs(quad_base, word_base, CODES_AT, sub);
    [[unroll]] for (int i = 0; i < 8; i++) {
        block.u[i] = (pairs[i >> 2] >> (2 * (i & 3))) & 0x03030303u;
    }
#endif
#if FORMAT == Q5_0 || FORMAT == MXFP4
    add_fifth_bits(block, WORD(1 + sub));
#elif FORMAT == Q5_1
    add_fifth_bits(block, WORD(1));
#elif FORMAT == Q5_K
    add_fifth_bits(block, QUAD_WORD(1 + 5 * (sub >> 2), sub & 3));
#elif FORMAT == Q6_K
    uvec2 high = load_pairs(quad_base, word_base, 1 + 2 * (sub >> 1), sub);
    [[unroll]] for (int i = 0; i < 8; i++) {
        int s = i & 3;
        block.u[i] |= (s <= 2 ? high[i >> 2] << (4 - 2 * s) : high[i >> 2] >> 2) & 0x30303030u;
    }
#elif FORMAT == Q3_K
    add_third_bits(block, QUAD_WORD(1 + (sub >> 2), sub & 3));
#elif FORMAT == IQ1_M
    const uvec4 shared_quad = QUAD(0); // a component alone is misread by lavapipe 22.3
    const uint above = shared_quad.y >> (4 * sub);
    [[unroll]] for (int i = 0; i < 8; i++) {
        block.u[i] = (block.u[i] << 3) | (((above >> (i >> 1)) & 1) * 0x02020202u);
    }
#elif IQ2
    // Codes 0 to 5 stand for -43, -25, -8, 8, 25, 43: 17 a step, and 1 more for 1, 2 and 5.
    add_third_bits(block, QUAD_WORD(sub >> 2, sub & 3));
    [[unroll]] for (int i = 0; i < 8; i++) {
        uint c = block.u[i];
        block.u[i] = c + (c << 4) + ((c ^ (c >> 1)) & 0x01010101u);
    }
#elif FORMAT == IQ3_XXS
    // Codes stand for half of -62, -52, -44 .. 44, 52, 62: 4 a step, and 1 more at both ends.
    [[unroll]] for (int i = 0; i < 8; i++) {
        uint c = block.u[i];
        uint ends = ((c + 0x0f0f0f0fu) & 0x10101010u) + ((c + 0x01010101u) & 0x10101010u);
        block.u[i] = (c << 2) + (ends >> 4);
    }
#endif
    return block;
}

// Four bits for every 32 weights of a unit, or for every 16 of them.
uint scale_of_32(uint scales, uint sub) { return (scales >> (4 * sub)) & 15; }
uint scale_of_16(uint first, uint second, uint sub, int part) {
    return ((sub < 4 ? first : second) >> (8 * (sub & 3) + 4 * part)) & 15;
}

// The float of an unsigned number below 2^31, which converts faster as a signed one.
float to_float(uint number) { return float(int(number)); }

// Scale and bias of weights 16 part .. of block `sub`.
vec2 block_scale(UnitHead head, uint word_base, uint sub, int part) {
#if FORMAT == Q4_0 || FORMAT == Q5_0 || FORMAT == Q8_0
    float d = unpackHalf2x16(head.word >> (16 * sub)).x;
    const float zero_point = FORMAT == Q4_0 ? -8.0 : FORMAT == Q5_0 ? -16.0 : -128.0;
    return vec2(d, zero_point * d);
#elif FORMAT == Q4_1 || FORMAT == Q5_1
    return unpackHalf2x16(head.word);
#elif FORMAT == Q4_K || FORMAT == Q5_K
    vec2 d = unpackHalf2x16(head.quad.x);
    uint scale = ((head.quad.y >> (4 * sub)) & 15) | (((head.quad.w >> (2 * sub)) & 3) << 4);
    uint min = ((head.quad.z >> (4 * sub)) & 15) | (((head.quad.w >> (16 + 2 * sub)) & 3) << 4);
    return vec2(d.x * to_float(scale), -(d.y * to_float(min)));
#elif FORMAT == Q6_K || FORMAT == Q3_K
    uint pair = head.quad[sub >> 1] >> (16 * (sub & 1) + 8 * part);
    float scale = unpackHalf2x16(head.word).x * float(int(pair << 24) >> 24);
    return vec2(scale, (FORMAT == Q3_K ? -4.0 : -32.0) * scale);
#elif FORMAT == Q2_K
    uint pair = head.quad[sub >> 1] >> (16 * (sub & 1) + 8 * part);
    vec2 d = unpackHalf2x16(head.word);
    return vec2(d.x * to_float(pair & 15), -(d.y * to_float((pair >> 4) & 15)));
#elif FORMAT == IQ4_NL
    return vec2(unpackHalf2x16(head.word >> (16 * sub)).x, 0.0);
#elif FORMAT == IQ4_XS
    uint scale = scale_of_32(head.quad.x, sub) | (((head.word >> (16 + 2 * sub)) & 3) << 4);
    return vec2(unpackHalf2x16(head.word).x * (to_float(scale) - 32.0), 0.0);
#elif FORMAT == MXFP4
    // Half of 2^(exponent - 127), which at both small ends is no normal number.
    uint exponent = (head.word >> (16 * sub)) & 0xff;
    uint bits = exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23;
    float scale = uintBitsToFloat(bits);
    return vec2(scale, -12.0 * scale);
#elif FORMAT == TQ1_0 || FORMAT == TQ2_0
    float d = unpackHalf2x16(head.word).x;
    return vec2(d, -d);
#elif FORMAT == IQ1_S
    uint packed = scale_of_32(head.quad.x, sub);
    float scale = unpackHalf2x16(head.word).x * to_float(2 * (packed & 7) + 1);
    return vec2(scale, (packed < 8 ? -0.875 : -1.125) * scale);
#elif FORMAT == IQ1_M
    uint packed = scale_of_16(head.quad.z, head.quad.w, sub, part);
    float scale = unpackHalf2x16(head.quad.x).x * (to_float(2 * packed + 1) * 0.125);
    return vec2(scale, -9.0 * scale);
#elif FORMAT == IQ3_XXS
    float scale = unpackHalf2x16(head.word).x * (0.5 + to_float(scale_of_32(head.quad.x, sub)));
    return vec2(scale, -31.0 * scale);
#elif FORMAT == IQ3_S
    uint packed = scale_of_32(head.quad.x, sub);
    float scale = unpackHalf2x16(head.word).x * to_float(4 * packed + 2);
    return vec2(scale, -7.5 * scale);
#elif IQ2
#if FORMAT == IQ2_XXS
    uint packed = scale_of_32(head.quad.x, sub);
#else
    uint packed = scale_of_16(head.quad.x, head.quad.y, sub, part);
#endif
    float scale = unpackHalf2x16(head.word).x * (to_float(2 * packed + 1) * 0.125);
    return vec2(scale, -43.0 * scale);
#endif
}

#if CURVED

vec4 expand(uint u) {
#if SUBGROUPS
    if (LANES == 8) { // one instruction of a processor's, where the polynomial takes nine
        uvec4 c = uvec4(u & 15, (u >> 8) & 15, (u >> 16) & 15, u >> 24);
        vec4 v;
        [[unroll]] for (int i = 0; i < 4; i++) {
            float low = subgroupShuffle(curve_low, c[i] & 7);
            float high = subgroupShuffle(curve_high, c[i] & 7);
            v[i] = c[i] < 8 ? low : high;
        }
        return v;
    }
#endif
    return curve(vec4(int(u & 0xffu), int(u & 0xff00u), int(u & 0xff0000u), int(u >> 24)));
}
const vec4 PRESCALE = vec4(1.0);

#else

// u as floats times (1, 2^8, 2^16, 1): the activations carry the inverse powers (PRESCALE), which
// is exact and spares a shift a weight.
vec4 expand(uint u) {
    return vec4(int(u & 0xffu), int(u & 0xff00u), int(u & 0xff0000u), int(u >> 24));
}
const vec4 PRESCALE = vec4(1.0, 1.0 / 256.0, 1.0 / 65536.0, 1.0);

#endif

#else

// Weights 4 i .. of the block.
struct Block {
    vec4 w[8];
};

Block load_block(uint quad_base, uint word_base, uint sub) {
    Block block;
#if FORMAT == F32
    [[unroll]] for (int i = 0; i < 8; i++) {
        block.w[i] = uintBitsToFloat(QUAD(i));
    }
#else
    [[unroll]] for (int i = 0; i < 4; i++) {
        uvec4 q = QUAD(i);
#if FORMAT == F16
        block.w[2 * i] = vec4(unpackHalf2x16(q.x), unpackHalf2x16(q.y));
        block.w[2 * i + 1] = vec4(unpackHalf2x16(q.z), unpackHalf2x16(q.w));
#else
        uvec4 low = q << 16;
        uvec4 high = q & 0xffff0000u;
        block.w[2 * i] = uintBitsToFloat(uvec4(low.x, high.x, low.y, high.y));
        block.w[2 * i + 1] = uintBitsToFloat(uvec4(low.z, high.z, low.w, high.w));
#endif
    }
#endif
    return block;
}

const vec4 PRESCALE = vec4(1.0);

#endif
