// Weight formats: how the planes of a packed matrix become 32 weights of one row.
//
// A matrix of M rows and K columns is packed in groups of LANES rows (src/tensor/layout.rs). Rows
// are cut into units of UNIT weights; a unit takes QUADS words of 128 bits and WORDS words of 32
// bits, interleaved by lane, so that the lanes of a workgroup load neighbouring addresses:
//
//     quads[((group * units + unit) * QUADS + i) * LANES + lane]
//     words[((group * units + unit) * WORDS + i) * LANES + lane]
//
// A quantised weight is scale * u + bias with u an unsigned byte; scale and bias hold for 16 or 32
// weights. Byte i of word w of a block is u of weight 4 w + i.

#define F32 0
#define F16 1
#define BF16 2
#define Q8_0 3
#define Q4_0 4
#define Q4_1 5
#define Q5_0 6
#define Q5_1 7
#define Q4_K 8
#define Q5_K 9
#define Q6_K 10

#if FORMAT == F32
#define UNIT 32
#define QUADS 8
#define WORDS 0
#elif FORMAT == F16 || FORMAT == BF16
#define UNIT 32
#define QUADS 4
#define WORDS 0
#elif FORMAT == Q8_0
#define UNIT 64
#define QUADS 4
#define WORDS 1
#elif FORMAT == Q4_0
#define UNIT 64
#define QUADS 2
#define WORDS 1
#elif FORMAT == Q4_1
#define UNIT 32
#define QUADS 1
#define WORDS 1
#elif FORMAT == Q5_0
#define UNIT 64
#define QUADS 2
#define WORDS 3
#elif FORMAT == Q5_1
#define UNIT 32
#define QUADS 1
#define WORDS 2
#elif FORMAT == Q4_K
#define UNIT 256
#define QUADS 9
#define WORDS 0
#elif FORMAT == Q5_K
#define UNIT 256
#define QUADS 11
#define WORDS 0
#elif FORMAT == Q6_K
#define UNIT 256
#define QUADS 13
#define WORDS 1
#else
#error "unknown FORMAT"
#endif

#define BLOCKS_PER_UNIT (UNIT / 32)
#define QUANTISED (FORMAT >= Q8_0)
// Q6_K has a scale for every 16 weights, the others for every 32.
#if FORMAT == Q6_K
#define SCALES 2
#else
#define SCALES 1
#endif

// What the blocks of a unit share.
struct UnitHead {
    uvec4 quad; // Q4_K, Q5_K: d, dmin and the packed sub-block scales; Q6_K: 16 signed scales
    uint word;  // Q6_K: d; Q8_0, Q4_0, Q5_0: the scales of two blocks
};

UnitHead load_unit(uint quad_base, uint word_base) {
    UnitHead head = UnitHead(uvec4(0), 0);
#if FORMAT == Q4_K || FORMAT == Q5_K || FORMAT == Q6_K
    head.quad = quads[quad_base];
#endif
#if FORMAT == Q6_K || FORMAT == Q8_0 || FORMAT == Q4_0 || FORMAT == Q5_0
    head.word = words[word_base];
#endif
    return head;
}

#if QUANTISED

// The u of 32 weights, four to a word.
struct Block {
    uint u[8];
};

#if FORMAT != Q8_0
// Splits a word of eight nibbles into the words of its four even and four odd ones.
void split_nibbles(uint nibbles, out uint even, out uint odd) {
    even = nibbles & 0x0f0f0f0fu;
    odd = (nibbles >> 4) & 0x0f0f0f0fu;
}

// Adds bit i of every byte of `high` as bit 4 of every byte of u[i].
void add_fifth_bits(inout Block block, uint high) {
    [[unroll]] for (int i = 0; i < 8; i++) {
        block.u[i] |= (i <= 4 ? high << (4 - i) : high >> (i - 4)) & 0x10101010u;
    }
}
#endif

// Loads block `sub` of a unit; quad_base and word_base are those of the unit and of this lane.
Block load_block(uint quad_base, uint word_base, uint sub) {
    Block block;
#if FORMAT == Q8_0
    uvec4 a = quads[quad_base + 2 * sub * LANES];
    uvec4 b = quads[quad_base + (2 * sub + 1) * LANES];
    block.u = uint[8](a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w);
#else
#if FORMAT == Q4_K
    uvec4 q = quads[quad_base + (1 + sub) * LANES];
#elif FORMAT == Q5_K
    uvec4 q = quads[quad_base + (3 + sub) * LANES];
#elif FORMAT == Q6_K
    uvec4 q = quads[quad_base + (5 + sub) * LANES];
#else
    uvec4 q = quads[quad_base + sub * LANES];
#endif
    [[unroll]] for (int i = 0; i < 4; i++) {
        split_nibbles(q[i], block.u[2 * i], block.u[2 * i + 1]);
    }
#if FORMAT == Q5_0
    add_fifth_bits(block, words[word_base + (1 + sub) * LANES]);
#elif FORMAT == Q5_1
    add_fifth_bits(block, words[word_base + LANES]);
#elif FORMAT == Q5_K
    add_fifth_bits(block, quads[quad_base + (1 + (sub >> 2)) * LANES][sub & 3]);
#elif FORMAT == Q6_K
    uvec4 h = quads[quad_base + (1 + (sub >> 1)) * LANES];
    uvec2 high = (sub & 1) == 0 ? h.xy : h.zw;
    [[unroll]] for (int i = 0; i < 8; i++) {
        int s = i & 3;
        block.u[i] |= (s <= 2 ? high[i >> 2] << (4 - 2 * s) : high[i >> 2] >> 2) & 0x30303030u;
    }
#endif
#endif
    return block;
}

// Scale and bias of weights 16 half .. of block `sub`.
vec2 block_scale(UnitHead head, uint word_base, uint sub, int part) {
#if FORMAT == Q4_0 || FORMAT == Q5_0 || FORMAT == Q8_0
    float d = unpackHalf2x16(head.word >> (16 * sub)).x;
    const float zero_point = FORMAT == Q4_0 ? -8.0 : FORMAT == Q5_0 ? -16.0 : -128.0;
    return vec2(d, zero_point * d);
#elif FORMAT == Q4_1 || FORMAT == Q5_1
    return unpackHalf2x16(words[word_base]);
#elif FORMAT == Q4_K || FORMAT == Q5_K
    vec2 d = unpackHalf2x16(head.quad.x);
    uint scale = ((head.quad.y >> (4 * sub)) & 15) | (((head.quad.w >> (2 * sub)) & 3) << 4);
    uint min = ((head.quad.z >> (4 * sub)) & 15) | (((head.quad.w >> (16 + 2 * sub)) & 3) << 4);
    return vec2(d.x * float(int(scale)), -(d.y * float(int(min))));
#elif FORMAT == Q6_K
    uint pair = head.quad[sub >> 1] >> (16 * (sub & 1) + 8 * part);
    float scale = unpackHalf2x16(head.word).x * float(int(pair << 24) >> 24);
    return vec2(scale, -32.0 * scale);
#endif
}

// u as floats times (1, 2^8, 2^16, 1): the activations carry the inverse powers (PRESCALE), which
// is exact and spares a shift a weight.
vec4 expand(uint u) {
    return vec4(int(u & 0xffu), int(u & 0xff00u), int(u & 0xff0000u), int(u >> 24));
}
const vec4 PRESCALE = vec4(1.0, 1.0 / 256.0, 1.0 / 65536.0, 1.0);

#else

// Weights 4 i .. of the block.
struct Block {
    vec4 w[8];
};

Block load_block(uint quad_base, uint word_base, uint sub) {
    Block block;
#if FORMAT == F32
    [[unroll]] for (int i = 0; i < 8; i++) {
        block.w[i] = uintBitsToFloat(quads[quad_base + i * LANES]);
    }
#else
    [[unroll]] for (int i = 0; i < 4; i++) {
        uvec4 q = quads[quad_base + i * LANES];
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
