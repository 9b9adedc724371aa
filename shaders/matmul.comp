// matmul: y[t, m] = epilogue(norm[t] * sum_k W[m, k] * x[t, k] * g[k]) for packed weights W.
//
// One lane owns R rows of W (one of each of R groups of LANES rows) and TOKENS columns; activations
// are loaded once by the lanes together and handed round. No lane ever adds up another lane's
// matmuls, so a row's result has one order of summation whatever the number of tokens.
//
// With EXPERTS, W is one of several matrices of one shape, one behind the other, and the columns of
// a tile are routes: pairs of a token and an expert chosen for it (route = token * used + place).
// By LISTED, a workgroup takes the one route of its number, or all routes in an expert's list.
//
// Dispatch   (token tiles, row tiles, 1); with EXPERTS (routes or experts, row tiles, 1); local
//            size (LANES, SPLIT, 1): SPLIT rows of lanes share the units of K and add up at the end
// Binding 0  quads     readonly  128-bit plane of W (include/weights.glsl)
// Binding 1  words     readonly  32-bit plane of W
// Binding 2  x         readonly  f32 [tokens, x_stride]
// Binding 3  y         f32 [tokens, y_stride]; read only by the residual epilogue
// Binding 4  gain      readonly  f32 [K], with NORM
// Binding 5  bias      readonly  f32 [rows], with BIAS; with EXPERTS instead
//            routes    readonly  u32 [routes], the experts, or with LISTED [experts, 1 + list_max],
//                      the length of each expert's list and its routes
// Needs      shared memory SPLIT * R * TOKENS * LANES * 4 bytes where SPLIT > 1; subgroup broadcast
//            and shuffle in the variants with SUBGROUPS=1
// Numerics   f32; within 1e-5 of the twin relative to sum |w x|
//
// Types F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q4_K Q5_K Q6_K Q2_K Q3_K
// Types IQ4_NL IQ4_XS MXFP4 TQ1_0 TQ2_0 IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S
// Variant matmul_TYPE: SUBGROUPS=1 POINTERS=0 EXPERTS=0
// Variant matmul_TYPE_pointers: SUBGROUPS=1 POINTERS=1 EXPERTS=0
// Variant matmul_TYPE_shared: SUBGROUPS=0 POINTERS=0 EXPERTS=0
// Variant matmul_TYPE_experts: SUBGROUPS=1 POINTERS=0 EXPERTS=1
// Variant matmul_TYPE_experts_pointers: SUBGROUPS=1 POINTERS=1 EXPERTS=1
// Variant matmul_TYPE_experts_shared: SUBGROUPS=0 POINTERS=0 EXPERTS=1
#version 460
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#if POINTERS
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require
#endif

layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 0) const uint LANES = 8;
layout(constant_id = 1) const uint SPLIT = 1;
layout(constant_id = 2) const uint LOCAL_Z = 1;
layout(constant_id = 3) const uint R = 4;      // rows of a lane; even with a GLU epilogue
layout(constant_id = 4) const uint TOKENS = 1; // columns of a tile
layout(constant_id = 5) const uint NORM = 0;   // 1: RMS-normalise x and multiply by gain
layout(constant_id = 6) const uint BIAS = 0;   // 1: add bias
layout(constant_id = 7) const uint EPILOGUE = 0;
#if EXPERTS
layout(constant_id = 8) const uint LISTED = 0; // 1: a workgroup takes an expert's whole list
#endif

layout(push_constant) uniform Params {
    uvec2 quad_address; // with POINTERS: of the planes and of x
    uvec2 word_address;
    uvec2 x_address;
    uint units;     // units in a row of W
    uint rows;      // rows of y to write
    uint groups;    // groups of LANES rows in the planes
    uint token_count; // rows of x
    uint x_stride;  // in vec4
    uint y_stride;  // in floats
    uint y_offset;  // in floats
    uint blocks;    // blocks of 32 in a row of W
    float epsilon;  // with NORM
    float y_scale;
#if EXPERTS
    uint expert_first; // of the planes; the workgroups of other experts' routes have no work
    uint expert_count;
    uint used;     // neighbouring routes that share a row of x
    uint list_max; // with LISTED
    uint experts;  // of all planes
#endif
};
layout(std430, binding = 0) readonly buffer Quads { uvec4 bound_quads[]; };
layout(std430, binding = 1) readonly buffer Words { uint bound_words[]; };
layout(std430, binding = 2) readonly buffer X { vec4 bound_x[]; };
layout(std430, binding = 3) buffer Y { float y[]; };
layout(std430, binding = 4) readonly buffer Gain { vec4 gain[]; };
#if EXPERTS
layout(std430, binding = 5) readonly buffer Routes { uint routes[]; };
#else
layout(std430, binding = 5) readonly buffer Bias { float bias[]; };
#endif

#if POINTERS
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer QuadPlane {
    uvec4 at[];
};
layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer WordPlane {
    uint at[];
};
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer XRows { vec4 at[]; };
#define quads QuadPlane(quad_address).at
#define words WordPlane(word_address).at
#define x_rows XRows(x_address).at
#else
#define quads bound_quads
#define words bound_words
#define x_rows bound_x
#endif

// A block of 32 activations is 8 vec4: lane i (mod 8) loads number i; with 4 lanes each loads two.
const uint SPREAD = LANES < 8 ? LANES : 8;
const uint LOADS = 8 / SPREAD;
#define ROWS_Y SPLIT
#define LANE_SLOTS (TOKENS * LOADS)
#include "lanes.glsl"
#include "weights.glsl"
#if EXPERTS
#define NO_BIAS
#endif
#include "epilogue.glsl"

shared float partials[SPLIT > 1 ? SPLIT * R * TOKENS * LANES : 1];
shared float square_partials[SPLIT > 1 ? SPLIT * TOKENS : 1];

// Row of y that a column is.
uint column_row(uint column) {
#if EXPERTS
    const uint list = (expert_first + gl_WorkGroupID.x) * (1 + list_max);
    return LISTED == 1 ? routes[list + 1 + column] : gl_WorkGroupID.x;
#else
    return column;
#endif
}

// The tile of columns from `token_first` on, of `tokens` in all, with the rows of W from group
// `plane_group` of the planes on.
void compute_tile(uint token_first, uint tokens, uint plane_group) {
    const uint lane = gl_LocalInvocationID.x;
    const uint group_first = gl_WorkGroupID.y * R;

    uint quad_at[R];
    uint word_at[R];
    [[unroll]] for (uint r = 0; r < R; r++) {
        uint group = plane_group + min(group_first + r, groups - 1);
        quad_at[r] = group * units * QUADS * LANES + lane;
        word_at[r] = group * units * WORDS * LANES + lane;
    }
    uint x_at[TOKENS];
    uint y_at[TOKENS];
    float squares[TOKENS];
    float sums[R][TOKENS];
    [[unroll]] for (uint t = 0; t < TOKENS; t++) {
        const uint row = column_row(min(token_first + t, tokens - 1));
#if EXPERTS
        x_at[t] = row / used * x_stride + (lane % SPREAD);
#else
        x_at[t] = row * x_stride + (lane % SPREAD);
#endif
        y_at[t] = row * y_stride + y_offset;
        squares[t] = 0.0;
        [[unroll]] for (uint r = 0; r < R; r++) {
            sums[r][t] = 0.0;
        }
    }

    // Units of two blocks are taken block by block: no inner loop, and no half full last unit.
    const uint rounds = BLOCKS_PER_UNIT == 2 ? blocks : units;
    const uint subs = BLOCKS_PER_UNIT == 2 ? 1 : BLOCKS_PER_UNIT;
    // Every row of lanes runs the same number of rounds, because the variants without subgroups
    // have barriers inside; one without a round left adds zeros.
    for (uint first = 0; first < rounds; first += SPLIT) {
        const uint round = first + (SPLIT > 1 ? gl_LocalInvocationID.y : 0);
        const bool inside = SPLIT == 1 || round < rounds;
        const uint round_safe = SPLIT == 1 ? round : min(round, rounds - 1);
        const uint unit = BLOCKS_PER_UNIT == 2 ? round_safe >> 1 : round_safe;
        const uint quad_step = unit * QUADS * LANES;
        const uint word_step = unit * WORDS * LANES;
#if QUANTISED
        UnitHead head[R];
        [[unroll]] for (uint r = 0; r < R; r++) {
            head[r] = load_unit(quad_at[r] + quad_step, word_at[r] + word_step);
        }
#endif
        for (uint i = 0; i < subs; i++) {
            const uint sub = BLOCKS_PER_UNIT == 2 ? round_safe & 1 : i;
            const uint block_index = unit * BLOCKS_PER_UNIT + sub;
            vec4 xs[TOKENS][LOADS];
            float x_sum[TOKENS][SCALES];
            lanes_begin();
            [[unroll]] for (uint t = 0; t < TOKENS; t++) {
                float total[LOADS];
                [[unroll]] for (uint i = 0; i < LOADS; i++) {
                    vec4 v = inside ? x_rows[x_at[t] + block_index * 8 + i * SPREAD] : vec4(0.0);
                    if (NORM == 1) {
                        squares[t] += (v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w);
                        const uint at = block_index * 8 + i * SPREAD + lane % SPREAD;
                        v *= inside ? gain[at] : vec4(0.0);
                    }
                    xs[t][i] = v * PRESCALE;
                    lanes_put(t * LOADS + i, xs[t][i]);
#if QUANTISED
                    total[i] = (v.x + v.y) + (v.z + v.w);
#endif
                }
#if QUANTISED
#if SCALES == 1
                float all = 0.0;
                [[unroll]] for (uint i = 0; i < LOADS; i++) {
                    all += total[i];
                }
                x_sum[t][0] = lanes_sum(all, SPREAD);
#else
                // Load i of lane l is number i * SPREAD + l of the block's 8: the first four are
                // the first half.
                float low = 0.0;
                float high = 0.0;
                [[unroll]] for (uint i = 0; i < LOADS; i++) {
                    bool first_half = i * SPREAD + lane % SPREAD < 4;
                    low += first_half ? total[i] : 0.0;
                    high += first_half ? 0.0 : total[i];
                }
                x_sum[t][0] = lanes_sum(low, SPREAD);
                x_sum[t][1] = lanes_sum(high, SPREAD);
#endif
#endif
            }
            lanes_ready();

            Block w[R];
            [[unroll]] for (uint r = 0; r < R; r++) {
                w[r] = load_block(quad_at[r] + quad_step, word_at[r] + word_step, sub);
            }
#if QUANTISED
            [[unroll]] for (int part = 0; part < SCALES; part++) {
                float matmuls[R][TOKENS];
                [[unroll]] for (int i = 0; i < 8 / SCALES; i++) {
                    const int at = part * (8 / SCALES) + i;
                    [[unroll]] for (uint t = 0; t < TOKENS; t++) {
                        const uint load = at / SPREAD;
                        vec4 v = lanes_get(t * LOADS + load, at % SPREAD, xs[t][load]);
                        [[unroll]] for (uint r = 0; r < R; r++) {
                            vec4 u = expand(w[r].u[at]);
                            float p = (u.x * v.x + u.y * v.y) + (u.z * v.z + u.w * v.w);
                            matmuls[r][t] = i == 0 ? p : matmuls[r][t] + p;
                        }
                    }
                }
                [[unroll]] for (uint r = 0; r < R; r++) {
                    vec2 scale = block_scale(head[r], word_at[r] + word_step, sub, part);
                    [[unroll]] for (uint t = 0; t < TOKENS; t++) {
                        sums[r][t] += scale.x * matmuls[r][t] + scale.y * x_sum[t][part];
                    }
                }
            }
#else
            [[unroll]] for (int at = 0; at < 8; at++) {
                [[unroll]] for (uint t = 0; t < TOKENS; t++) {
                    vec4 v = lanes_get(t * LOADS + at / SPREAD, at % SPREAD, xs[t][at / SPREAD]);
                    [[unroll]] for (uint r = 0; r < R; r++) {
                        sums[r][t] += (w[r].w[at].x * v.x + w[r].w[at].y * v.y)
                            + (w[r].w[at].z * v.z + w[r].w[at].w * v.w);
                    }
                }
            }
#endif
        }
    }

    float scale[TOKENS];
    [[unroll]] for (uint t = 0; t < TOKENS; t++) {
        scale[t] = NORM == 1 ? lanes_sum(squares[t], SPREAD) : 0.0;
    }
    if (SPLIT > 1) {
        const uint slice = gl_LocalInvocationID.y;
        [[unroll]] for (uint t = 0; t < TOKENS; t++) {
            if (lane == 0) {
                square_partials[slice * TOKENS + t] = scale[t];
            }
            [[unroll]] for (uint r = 0; r < R; r++) {
                partials[((slice * R + r) * TOKENS + t) * LANES + lane] = sums[r][t];
            }
        }
        barrier(); // the partial sums of all rows of lanes are there
        if (slice > 0) {
            return;
        }
        for (uint other = 1; other < SPLIT; other++) {
            [[unroll]] for (uint t = 0; t < TOKENS; t++) {
                scale[t] += square_partials[other * TOKENS + t];
                [[unroll]] for (uint r = 0; r < R; r++) {
                    sums[r][t] += partials[((other * R + r) * TOKENS + t) * LANES + lane];
                }
            }
        }
    }

    [[unroll]] for (uint t = 0; t < TOKENS; t++) {
        if (token_first + t >= tokens) {
            break;
        }
        const float factor = NORM == 1 ? inversesqrt(scale[t] / float(blocks * 32) + epsilon) : 1.0;
        float column[R];
        [[unroll]] for (uint r = 0; r < R; r++) {
            column[r] = sums[r][t];
        }
        write_column(column, group_first, lane, factor, y_at[t]);
    }
}

#if EXPERTS
void main() {
    const uint at = gl_WorkGroupID.x;
    const uint expert = LISTED == 1 ? at : routes[at] - expert_first;
    if (expert >= expert_count) {
        return;
    }
    const uint count = LISTED == 1 ? routes[(expert_first + at) * (1 + list_max)] : 1;
    for (uint first = 0; first < count; first += TOKENS) {
        if (SPLIT > 1) {
            barrier(); // the partial sums of the tile before have been read
        }
        compute_tile(first, count, expert * groups);
    }
}
#else
void main() { compute_tile(gl_WorkGroupID.x * TOKENS, token_count, 0); }
#endif
