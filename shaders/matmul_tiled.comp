// matmul_tiled: y[t, m] = epilogue(factor[t] * sum_k W[m, k] * x[t, k]) for many tokens, in f16.
//
// Tiles as in include/tile.glsl; x was narrowed by quantize_x.comp. MATRIX: subgroups multiply
// fragments with the device's matrix units, summing in f32. Else each lane has R rows and
// TOKENS / SPLIT columns, and sums the matmuls of a block in f16, blocks in f32.
//
// Dispatch   (token tiles, row tiles, 1), or with LISTED (experts, row tiles, tiles of a list);
//            local size (LANES, SPLIT, 1)
// Binding 0  quads     readonly  128-bit plane of W (include/weights.glsl)
// Binding 1  words     readonly  32-bit plane of W
// Binding 2  x         readonly  f16 [tokens, x_stride]
// Binding 3  y         f32 [tokens, y_stride]; read only by the residual epilogue
// Binding 4  factors   readonly  f32 [tokens]
// Binding 5  bias      readonly  f32 [rows], with BIAS; with LISTED instead
//            lists     readonly  u32 [experts, 1 + list_max], the length of each and its routes
// Needs      f16 arithmetic; R even; shared memory 160 * (R * LANES + TOKENS) bytes. MATRIX:
//            cooperative matrices of M x N x K with f32 sums, whose columns and rows together
//            fill the tile, and whose results fit that memory; else TOKENS a multiple of SPLIT
// Numerics   weights and x in f16; within 2e-4 of the twin (MATRIX) or 4e-4 relative to sum |w x|
//
// Types F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q4_K Q5_K Q6_K Q2_K Q3_K
// Types IQ4_NL IQ4_XS MXFP4 TQ1_0 TQ2_0 IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S
// Variant matmul_tiled_TYPE_matrix: MATRIX=1 SUBGROUPS=0
// Variant matmul_tiled_TYPE_half: MATRIX=0 SUBGROUPS=0
#version 460
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_GOOGLE_include_directive : require
#if MATRIX
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#endif

#if MATRIX
layout(constant_id = 8) const uint M = 16; // rows, columns and depth of a fragment
layout(constant_id = 9) const uint N = 16;
layout(constant_id = 10) const uint K = 16;
layout(constant_id = 11) const uint ACROSS = 1; // subgroups that share the columns of a tile
layout(constant_id = 12) const uint DOWN = 1;   // and its rows
#endif

// A row's block in shared memory: four quads of f16, and one that keeps the rows that lanes read
// together out of one another's banks.
const uint ROW_QUADS = 5;
#define X_QUADS 4
#if MATRIX
#define OWN_GROUPS 2
#endif
#include "tile.glsl"

uvec4 pack_halves(vec4 a, vec4 b) {
    return uvec4(packFloat2x16(f16vec2(a.xy)), packFloat2x16(f16vec2(a.zw)),
        packFloat2x16(f16vec2(b.xy)), packFloat2x16(f16vec2(b.zw)));
}

void put_row(uint own, uint block, uint at) {
    [[unroll]] for (uint i = 0; i < 4; i++) {
#if QUANTISED
        const int part = int(i * SCALES / 4);
        const vec2 scale = block_scale(own_heads[own], 0, block % BLOCKS_PER_UNIT, part);
        const vec4 factor = scale.x * PRESCALE;
        tile[at + i] = pack_halves(expand(own_weights[own].u[2 * i]) * factor + scale.y,
            expand(own_weights[own].u[2 * i + 1]) * factor + scale.y);
#else
        tile[at + i] = pack_halves(own_weights[own].w[2 * i], own_weights[own].w[2 * i + 1]);
#endif
    }
}

#if MATRIX

// Fragments of a subgroup.
const uint ROW_FRAGMENTS = ROWS / (DOWN * M);
const uint COLUMN_FRAGMENTS = TOKENS / (ACROSS * N);
// A column of results, and one quad that keeps columns out of one another's banks.
const uint COLUMN_QUADS = ROWS / 4 + 1;

#define Sums coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>

Sums sums[ROW_FRAGMENTS * COLUMN_FRAGMENTS];

void clear() {
    [[unroll]] for (uint i = 0; i < ROW_FRAGMENTS * COLUMN_FRAGMENTS; i++) {
        sums[i] = Sums(0.0);
    }
}

void multiply(uint stage) {
    const uint row_first = gl_SubgroupID / ACROSS * ROW_FRAGMENTS * M;
    const uint column_first = gl_SubgroupID % ACROSS * COLUMN_FRAGMENTS * N;
    [[unroll]] for (uint k = 0; k < 32; k += K) {
        coopmat<float16_t, gl_ScopeSubgroup, K, N, gl_MatrixUseB> right[COLUMN_FRAGMENTS];
        [[unroll]] for (uint j = 0; j < COLUMN_FRAGMENTS; j++) {
            const uint at = stage + (ROWS + column_first + j * N) * ROW_QUADS + k / 8;
            coopMatLoad(right[j], tile, at, ROW_QUADS, gl_CooperativeMatrixLayoutColumnMajor);
        }
        [[unroll]] for (uint i = 0; i < ROW_FRAGMENTS; i++) {
            coopmat<float16_t, gl_ScopeSubgroup, M, K, gl_MatrixUseA> left;
            const uint at = stage + (row_first + i * M) * ROW_QUADS + k / 8;
            coopMatLoad(left, tile, at, ROW_QUADS, gl_CooperativeMatrixLayoutRowMajor);
            [[unroll]] for (uint j = 0; j < COLUMN_FRAGMENTS; j++) {
                const uint sum = i * COLUMN_FRAGMENTS + j;
                sums[sum] = coopMatMulAdd(left, right[j], sums[sum]);
            }
        }
    }
}

// Hands results to the lanes that own their rows, by way of shared memory: a column of fragments at
// a time.
void finish() {
    const uint row_first = gl_SubgroupID / ACROSS * ROW_FRAGMENTS * M;
    const uint slot = gl_SubgroupID % ACROSS;
    [[unroll]] for (uint j = 0; j < COLUMN_FRAGMENTS; j++) {
        [[unroll]] for (uint i = 0; i < ROW_FRAGMENTS; i++) {
            const uint at = slot * N * COLUMN_QUADS + (row_first + i * M) / 4;
            coopMatStore(sums[i * COLUMN_FRAGMENTS + j], tile, at, COLUMN_QUADS,
                gl_CooperativeMatrixLayoutColumnMajor);
        }
        barrier(); // the results are there
        for (uint i = gl_LocalInvocationID.y; i < ACROSS * N * (R / 2); i += SPLIT) {
            const uint from = i / (R / 2);
            const uint group = i % (R / 2) * 2;
            float pair[2];
            [[unroll]] for (uint r = 0; r < 2; r++) {
                const uint row = (group + r) * LANES + gl_LocalInvocationID.x;
                pair[r] = uintBitsToFloat(tile[from * COLUMN_QUADS + row / 4][row % 4]);
            }
            write_tile(pair, group, (from / N * COLUMN_FRAGMENTS + j) * N + from % N);
        }
        barrier(); // they have been read
    }
}

#else

void multiply(uint stage) {
    f16vec2 matmuls[R][COLUMNS];
    [[unroll]] for (uint i = 0; i < 4; i++) {
        uvec4 w[R];
        [[unroll]] for (uint r = 0; r < R; r++) {
            w[r] = tile[row_at(stage, r) + i];
        }
        [[unroll]] for (uint t = 0; t < COLUMNS; t++) {
            const uvec4 v = tile[column_at(stage, t) + i];
            [[unroll]] for (uint r = 0; r < R; r++) {
                [[unroll]] for (uint pair = 0; pair < 4; pair++) {
                    const f16vec2 a = unpackFloat2x16(w[r][pair]);
                    const f16vec2 b = unpackFloat2x16(v[pair]);
                    matmuls[r][t] = i + pair == 0 ? a * b : fma(a, b, matmuls[r][t]);
                }
            }
        }
    }
    [[unroll]] for (uint t = 0; t < COLUMNS; t++) {
        [[unroll]] for (uint r = 0; r < R; r++) {
            sums[r][t] += float(matmuls[r][t].x) + float(matmuls[r][t].y);
        }
    }
}

#endif
