// qkv_post: per head, normalise q and k (optional), rotate them (RoPE), and store k and v in the
// session's KV pages.
//
// Dispatch   (tokens, heads + 2 * kv_heads, 1); local size (LANES, 1, 1)
// Binding 0  qkv     readonly  f32 [tokens, qkv_stride]: heads, then kv_heads of k, then of v
// Binding 1  steps   readonly  uvec4 [tokens]: token id, position, block table, unused
// Binding 2  tables  readonly  u32 [block tables, table_stride]: page of each PAGE_TOKENS positions
// Binding 3  rope    readonly  vec2 (cos, sin) [coarse + 64, rope_dim / 2]: of 64 p, then of p < 64
// Binding 4  q_gain  readonly  f32 [HEAD_DIM] with QK_NORM, [heads * HEAD_DIM] where it is above 1
// Binding 5  k_gain  readonly  the same of the kv_heads
// Binding 6  q       f32 [tokens, heads * HEAD_DIM]
// Binding 7  kv      u32 words of this layer's pages (include/pages.glsl)
// Needs      subgroup shuffle with SUBGROUPS=1
// Numerics   f32; pages of f16, and scales of q8_0, round to nearest even
//
// Variant qkv_post: SUBGROUPS=1
// Variant qkv_post_shared: SUBGROUPS=0
#version 460
#extension GL_GOOGLE_include_directive : require

layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 0) const uint LANES = 8;
layout(constant_id = 1) const uint LOCAL_Y = 1;
layout(constant_id = 2) const uint LOCAL_Z = 1;
layout(constant_id = 3) const uint HEAD_DIM = 64;
layout(constant_id = 4) const uint KV_FORMAT = 1; // of the pages (include/pages.glsl)
layout(constant_id = 5) const uint KEY_WORDS = 4; // of the pages
layout(constant_id = 6) const uint QK_NORM = 0;
layout(constant_id = 7) const uint NEOX = 0; // 1: (i, i + rope_dim / 2); 0: (2 i, 2 i + 1)

const uint NORM_HEAD = 1;       // each head by its mean square, with one gain for all
const uint NORM_WHOLE = 2;      // all heads by the mean square of them all
const uint NORM_LAYER_HEAD = 3; // each head by its mean and deviation

layout(push_constant) uniform Params {
    uint heads;
    uint kv_heads;
    uint qkv_stride;   // in floats
    uint table_stride; // in pages
    uint rope_dim;     // even, may be 0; dimensions past it are not rotated
    uint rope_coarse;  // rows of the coarse half of `rope`
    float epsilon;
};
layout(std430, binding = 0) readonly buffer Qkv { float qkv[]; };
layout(std430, binding = 1) readonly buffer Steps { uvec4 steps[]; };
layout(std430, binding = 2) readonly buffer Tables { uint tables[]; };
layout(std430, binding = 3) readonly buffer Rope { vec2 rope[]; };
layout(std430, binding = 4) readonly buffer QGain { float q_gain[]; };
layout(std430, binding = 5) readonly buffer KGain { float k_gain[]; };
layout(std430, binding = 6) buffer Q { vec2 q[]; };
layout(std430, binding = 7) buffer Kv { uint kv[]; };

#define ROWS_Y 1
#define LANE_SLOTS 1
#include "lanes.glsl"
#include "half.glsl"
#include "pages.glsl"

vec2 cos_sin(uint position, uint pair) {
    vec2 coarse = rope[(position >> 6) * (rope_dim / 2) + pair];
    vec2 fine = rope[(rope_coarse + (position & 63)) * (rope_dim / 2) + pair];
    return vec2(coarse.x * fine.x - coarse.y * fine.y, coarse.y * fine.x + coarse.x * fine.y);
}

// A head of q or k: where it and its gain start, and how it is normalised.
struct Head {
    uint at;
    uint gain_at;
    float mean;
    float factor;
    bool is_q;
};

float load(Head head, uint dim) {
    float value = (qkv[head.at + dim] - head.mean) * head.factor;
    if (QK_NORM > 0) {
        value *= head.is_q ? q_gain[head.gain_at + dim] : k_gain[head.gain_at + dim];
    }
    return value;
}

// Dimension `dim` of the head, normalised and rotated.
float rotated(Head head, uint dim, uint position) {
    float own = load(head, dim);
    if (dim >= rope_dim) {
        return own;
    }
    uint half_dim = rope_dim / 2;
    uint pair = NEOX == 1 ? (dim < half_dim ? dim : dim - half_dim) : dim / 2;
    bool is_first = NEOX == 1 ? dim < half_dim : (dim & 1) == 0;
    uint partner_dim = NEOX == 1 ? (is_first ? dim + half_dim : dim - half_dim) : dim ^ 1;
    float partner = load(head, partner_dim);
    vec2 cs = cos_sin(position, pair);
    return is_first ? own * cs.x - partner * cs.y : own * cs.x + partner * cs.y;
}

// Two neighbouring dimensions of a head, as q or the pages take them.
vec2 pair_of(Head head, uint dim, uint position, bool is_v) {
    if (is_v) {
        return vec2(qkv[head.at + dim], qkv[head.at + dim + 1]);
    }
    return vec2(rotated(head, dim, position), rotated(head, dim + 1, position));
}

const uint SPREAD = LANES < 8 ? LANES : 8; // lanes that make two blocks of KV_Q8_0
const uint CODE_WORDS = 8 / SPREAD;        // of each block, by a lane

// Values that are larger, or no numbers, spoil the block of KV_Q8_0 that they are in: its scale is
// NaN, and so are all products with it. As in src/kernels/pages.rs.
const float STORED_MAX = 1e38;
const float SPOILT = 3e38;

// Stores a block of KV_Q8_0 from dimension `first` on, nothing past the end of the head, and gives
// its scale.
float store_block(Head head, uint page, uint kv_head, uint position, bool is_v, uint first) {
    const uint own = first + gl_LocalInvocationID.x % SPREAD * CODE_WORDS * 4;
    vec4 values[CODE_WORDS];
    float largest = 0.0;
    bool spoilt = false; // by any lane, once lanes have exchanged what is largest
    for (uint i = 0; i < CODE_WORDS; i++) {
        const uint dim = own + 4 * i;
        values[i] = vec4(0.0);
        if (dim < HEAD_DIM) {
            values[i].xy = pair_of(head, dim, position, is_v);
            values[i].zw = pair_of(head, dim + 2, position, is_v);
        }
        const vec2 size = max(abs(values[i].xy), abs(values[i].zw));
        largest = max(largest, max(size.x, size.y));
        const uvec4 bits = floatBitsToUint(values[i]) & 0x7fffffffu;
        spoilt = spoilt || any(greaterThan(bits, uvec4(floatBitsToUint(STORED_MAX))));
    }
    largest = spoilt ? SPOILT : largest;
    for (uint mask = 1; mask < SPREAD; mask <<= 1) {
        largest = max(largest, lanes_exchange(largest, mask));
    }
    spoilt = largest > STORED_MAX;
    const float scale = round_to_half(largest / 127.0);
    const float factor = scale > 0.0 ? 1.0 / scale : 0.0;
    for (uint i = 0; i < CODE_WORDS; i++) {
        const uint dim = own + 4 * i;
        const ivec4 near = ivec4(clamp(roundEven(values[i] * factor), -127.0, 127.0)) & 0xff;
        const ivec4 code = spoilt ? ivec4(0) : near;
        if (dim < HEAD_DIM) {
            const uint slot = position % PAGE_TOKENS;
            const uint word = is_v ? v_word(page, kv_heads, kv_head, slot, dim)
                                   : k_word(page, kv_heads, kv_head, slot, dim);
            kv[word] = uint(code.x | code.y << 8 | code.z << 16 | code.w << 24);
        }
    }
    return spoilt ? uintBitsToFloat(0x7fc00000u) : scale;
}

// Stores a head of k or v as KV_Q8_0: SPREAD lanes at a time take two blocks, whose scales share a
// word.
void store_codes(Head head, uint page, uint kv_head, uint position, bool is_v) {
    const uint lane = gl_LocalInvocationID.x;
    const uint slot = position % PAGE_TOKENS;
    for (uint start = 0; start < SCALE_WORDS; start += LANES / SPREAD) {
        const uint pair = start + lane / SPREAD;
        const uint first = 2 * pair * KV_BLOCK;
        vec2 scales;
        scales.x = store_block(head, page, kv_head, position, is_v, first);
        scales.y = store_block(head, page, kv_head, position, is_v, first + KV_BLOCK);
        if (lane % SPREAD == 0 && pair < SCALE_WORDS) {
            const uint word = is_v ? v_scale_word(page, kv_heads, kv_head, slot, pair)
                                   : k_scale_word(page, kv_heads, kv_head, slot, pair);
            kv[word] = pack_half(scales);
        }
    }
}

void main() {
    const uint lane = gl_LocalInvocationID.x;
    const uint token = gl_WorkGroupID.x;
    const uint head = gl_WorkGroupID.y;
    const uint at = token * qkv_stride + head * HEAD_DIM;
    const bool is_q = head < heads;
    const bool is_v = head >= heads + kv_heads;
    const uint position = steps[token].y;

    Head own = Head(at, 0, 0.0, 1.0, is_q);
    if (QK_NORM > NORM_HEAD) {
        own.gain_at = (is_q ? head : head - heads) * HEAD_DIM;
    }
    if (QK_NORM > 0) {
        uint from = at;
        uint count = HEAD_DIM;
        if (QK_NORM == NORM_WHOLE) {
            from = token * qkv_stride + (is_q ? 0 : heads * HEAD_DIM);
            count = (is_q ? heads : kv_heads) * HEAD_DIM;
        }
        if (QK_NORM == NORM_LAYER_HEAD) {
            float sum = 0.0;
            for (uint dim = lane; dim < HEAD_DIM; dim += LANES) {
                sum += qkv[at + dim];
            }
            own.mean = lanes_sum(sum, LANES) / float(HEAD_DIM);
        }
        float squares = 0.0;
        for (uint dim = lane; dim < count; dim += LANES) {
            float value = qkv[from + dim] - own.mean;
            squares += value * value;
        }
        own.factor = inversesqrt(lanes_sum(squares, LANES) / float(count) + epsilon);
    }
    const uint kv_head = is_v ? head - heads - kv_heads : head - heads;
    const uint page = is_q ? 0 : tables[steps[token].z * table_stride + position / PAGE_TOKENS];
    if (KV_FORMAT == KV_Q8_0 && !is_q) {
        store_codes(own, page, kv_head, position, is_v);
        return;
    }
    for (uint pair = lane; pair < HEAD_DIM / 2; pair += LANES) {
        const uint dim = 2 * pair;
        const vec2 value = pair_of(own, dim, position, is_v);
        if (is_q) {
            q[(token * heads + head) * (HEAD_DIM / 2) + pair] = value;
        } else {
            uint word = is_v ? v_word(page, kv_heads, kv_head, position % PAGE_TOKENS, dim)
                             : k_word(page, kv_heads, kv_head, position % PAGE_TOKENS, dim);
            if (KV_FORMAT == KV_F16) {
                kv[word] = pack_half(value);
            } else {
                kv[word] = floatBitsToUint(value.x);
                kv[word + (is_v || KEY_WORDS > 1 ? 1 : PAGE_TOKENS)] = floatBitsToUint(value.y);
            }
        }
    }
}
