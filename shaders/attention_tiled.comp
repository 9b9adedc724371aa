// attention_tiled: what attention.comp computes, for tiles of many tokens by matrix units: of q,
// keys, values and weights in f16, with sums in f32.
//
// A workgroup takes ROWS rows, neighbouring tokens of one session times HEADS of the query heads
// that share a kv head, and a subgroup M of them. The keys of a block of positions, then its
// values, are staged in shared memory for all rows. A subgroup multiplies its rows by the keys; the
// scores go through shared memory to the lanes that own their rows, and come back as weights, by
// which the values are multiplied. Sums stay in fragments.
//
// Blocks begin at multiples of POSITIONS, and one of which a row sees nothing changes none of its
// bits: the order of summation of a row depends on its position alone.
//
// Dispatch   (tiles, kv_heads * head_parts, 1); local size (LANES, SUBGROUPS, 1)
// Binding 0  kv        readonly  quads of this layer's pages (include/pages.glsl)
// Binding 1  q         readonly  f32 [tokens, heads * HEAD_DIM]
// Binding 2  steps     readonly  uvec4 [tokens]: token id, position, block table, unused
// Binding 3  tiles     readonly  uvec4 [tiles]: first token, tokens, keys of the session, unused
// Binding 4  tables    readonly  u32 [block tables, table_stride]
// Binding 5  kv_words  readonly  the same pages as words
// Binding 6  y         f32 [tokens, heads * HEAD_DIM]
// Needs      f16 arithmetic; cooperative matrices of M x N x K with f32 sums in subgroups of LANES;
//            subgroup shuffle; HEAD_DIM and POSITIONS multiples of N and K; at most PAGE_TOKENS
//            positions, of which a lane owns a multiple of 8; shared memory for STAGE_ROWS rows
//            of ROW_QUADS and ROWS rows of SCORE_QUADS quads
// Numerics   q, keys and values in f16, weights too; within 1e-3 of the twin
#version 460
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require

layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 0) const uint LANES = 32; // of a subgroup
layout(constant_id = 1) const uint SUBGROUPS = 4;
layout(constant_id = 2) const uint LOCAL_Z = 1;
layout(constant_id = 3) const uint HEAD_DIM = 64;
layout(constant_id = 4) const uint KV_FORMAT = 1; // of the pages (include/pages.glsl)
layout(constant_id = 5) const uint KEY_WORDS = 4; // of the pages
layout(constant_id = 6) const uint HEADS = 1;     // query heads of a workgroup
layout(constant_id = 7) const uint CAUSAL = 1;    // 0: a token sees those behind it too
layout(constant_id = 8) const uint M = 16;        // rows, columns and depth of a fragment
layout(constant_id = 9) const uint N = 16;
layout(constant_id = 10) const uint K = 16;
layout(constant_id = 11) const uint POSITIONS = 32; // of a block
layout(constant_id = 12) const uint Q_SHARED = 0;   // 1: q stays in shared memory

layout(push_constant) uniform Params {
    uvec2 addresses[2]; // of attention.comp's pointers
    uint heads;
    uint kv_heads;
    uint head_parts;   // workgroups that share the query heads of a kv head
    uint table_stride; // in pages
    uint window;       // positions a token sees, itself included; 0: all
    float scale;       // of the scores
    float soft_cap;    // 0: none
};
layout(std430, binding = 0) readonly buffer Kv { uvec4 kv[]; };
layout(std430, binding = 1) readonly buffer Q { vec4 q[]; };
layout(std430, binding = 2) readonly buffer Steps { uvec4 steps[]; };
layout(std430, binding = 3) readonly buffer Tiles { uvec4 tiles[]; };
layout(std430, binding = 4) readonly buffer Tables { uint tables[]; };
layout(std430, binding = 5) readonly buffer KvWords { uint kv_words[]; };
layout(std430, binding = 6) writeonly buffer Y { vec4 y[]; };

#include "pages.glsl"

const uint ROWS = SUBGROUPS * M;
const uint THREADS = SUBGROUPS * LANES;

// Rows in shared memory have an odd number of quads: those that lanes read together are then in
// different banks.
const uint ROW_QUADS = (HEAD_DIM / 8) | 1;
const uint KEYS = Q_SHARED == 1 ? ROWS : 0; // first row of keys, behind those of q
const uint VALUES = KEYS + POSITIONS;       // and of values
const uint STAGE_ROWS = VALUES + POSITIONS > ROWS ? VALUES + POSITIONS : ROWS;
shared uvec4 stage[STAGE_ROWS * ROW_QUADS];

// Of each row POSITIONS scores in f32; in their place weights in f16, and behind these N times what
// the row's sums are multiplied by. At the end, N sums.
const uint WEIGHT_QUADS = POSITIONS / 8;
const uint SCORE_QUADS =
    (POSITIONS / 4 > WEIGHT_QUADS + N / 4 ? POSITIONS / 4 : WEIGHT_QUADS + N / 4) | 1;
shared uvec4 scores[ROWS * SCORE_QUADS];

#define Left coopmat<float16_t, gl_ScopeSubgroup, M, K, gl_MatrixUseA>
#define Right coopmat<float16_t, gl_ScopeSubgroup, K, N, gl_MatrixUseB>
#define Sums coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>

Left queries[HEAD_DIM / K]; // unless q stays in shared memory
Sums sums[HEAD_DIM / N];

// Drivers load push constants where they are named, and check each: hoisted by hand.
uvec4 tile;
uint head_count;
uint kv_head_count;
uint kv_head;
uint row_first; // of the subgroup

const float LOWEST = -1e30;
const float HALF_MAX = 65504.0;

uvec4 halves(vec4 a, vec4 b) {
    a = clamp(a, -HALF_MAX, HALF_MAX);
    b = clamp(b, -HALF_MAX, HALF_MAX);
    return uvec4(packFloat2x16(f16vec2(a.xy)), packFloat2x16(f16vec2(a.zw)),
        packFloat2x16(f16vec2(b.xy)), packFloat2x16(f16vec2(b.zw)));
}

// Row j is token j / HEADS of the tile, head j % HEADS. Rows past the end repeat the last token or
// head and are not stored.
uint token_of(uint row) { return tile.x + min(row / HEADS, tile.y - 1); }

// Whether a row is there, and its first quad in q and y.
bool find_row(uint row, out uint at) {
    const uint group = head_count / kv_head_count;
    const uint head = gl_WorkGroupID.y % head_parts * HEADS + row % HEADS;
    at = (token_of(row) * head_count + kv_head * group + min(head, group - 1)) * (HEAD_DIM / 4);
    return row / HEADS < tile.y && head < group;
}

void stage_queries() {
    const uint parts = HEAD_DIM / 8;
    for (uint i = gl_LocalInvocationIndex; i < ROWS * parts; i += THREADS) {
        uint at;
        find_row(i / parts, at);
        at += 2 * (i % parts);
        stage[i / parts * ROW_QUADS + i % parts] = halves(q[at], q[at + 1]);
    }
}

// What a lane loads at once of a block's keys or values: ITEM dimensions of one position.
const uint ITEM = KV_FORMAT == KV_Q8_0 ? 16 : 8;
const uint ITEM_QUADS = KV_FORMAT == KV_F32 ? 2 : 1;
const uint ITEMS = POSITIONS * HEAD_DIM / ITEM;
const uint OWN_ITEMS = (ITEMS + THREADS - 1) / THREADS;
uvec4 own_quads[OWN_ITEMS][ITEM_QUADS];
float own_scales[OWN_ITEMS];

// Position within the block and first dimension of an item. Neighbouring lanes have neighbouring
// positions of keys and neighbouring dimensions of values, as these are side by side in pages.
uvec2 place_of(uint item, bool is_value) {
    const uint parts = HEAD_DIM / ITEM;
    return is_value ? uvec2(item / parts, item % parts * ITEM)
                    : uvec2(item % POSITIONS, item / POSITIONS * ITEM);
}

uvec4 load_quad(uint page, uint slot, uint dim, bool is_value) {
    if (is_value) {
        return kv[v_word(page, kv_head_count, kv_head, slot, dim) / 4];
    }
    if (KEY_WORDS == 4) {
        return kv[k_word(page, kv_head_count, kv_head, slot, dim) / 4];
    }
    uvec4 quad;
    [[unroll]] for (uint c = 0; c < 4; c++) {
        quad[c] = kv_words[k_word(page, kv_head_count, kv_head, slot, dim + c * KV_PER_WORD)];
    }
    return quad;
}

float load_scale(uint page, uint slot, uint dim, bool is_value) {
    const uint word = is_value ? v_scale_word(page, kv_head_count, kv_head, slot, dim / 64)
                               : k_scale_word(page, kv_head_count, kv_head, slot, dim / 64);
    const vec2 both = unpackHalf2x16(kv_words[word]);
    return dim / KV_BLOCK % 2 == 0 ? both.x : both.y;
}

// Loads a lane's part of a block. Behind position `last` nothing was written: it stands for those.
void fetch(uint page, uint block, uint last, bool is_value) {
    [[unroll]] for (uint own = 0; own < OWN_ITEMS; own++) {
        const uint item = min(own * THREADS + gl_LocalInvocationIndex, ITEMS - 1);
        const uvec2 place = place_of(item, is_value);
        const uint slot = min(block + place.x, last) % PAGE_TOKENS;
        [[unroll]] for (uint i = 0; i < ITEM_QUADS; i++) {
            own_quads[own][i] = load_quad(page, slot, place.y + 4 * i, is_value);
        }
        if (KV_FORMAT == KV_Q8_0) {
            own_scales[own] = load_scale(page, slot, place.y, is_value);
        }
    }
}

// Puts what was fetched into shared memory, from row `first` on.
void put(uint first, bool is_value) {
    [[unroll]] for (uint own = 0; own < OWN_ITEMS; own++) {
        const uint item = own * THREADS + gl_LocalInvocationIndex;
        if (item >= ITEMS) {
            break;
        }
        const uvec2 place = place_of(item, is_value);
        const uint at = (first + place.x) * ROW_QUADS + place.y / 8;
        const uvec4 quad = own_quads[own][0];
        if (KV_FORMAT == KV_Q8_0) {
            const float scale = own_scales[own];
            stage[at] = halves(kv_codes(quad.x) * scale, kv_codes(quad.y) * scale);
            stage[at + 1] = halves(kv_codes(quad.z) * scale, kv_codes(quad.w) * scale);
        } else if (KV_FORMAT == KV_F16) {
            stage[at] = quad;
        } else {
            const uvec4 next = own_quads[own][ITEM_QUADS - 1];
            stage[at] = halves(uintBitsToFloat(quad), uintBitsToFloat(next));
        }
    }
}

// Where a fragment of the subgroup's rows of q is staged.
uint query_at(uint part) { return row_first * ROW_QUADS + part * K / 8; }

Sums matmuls[POSITIONS / N];

// Adds the matmuls of a fragment of q and its part of the keys.
void multiply_keys(Left query, uint part) {
    [[unroll]] for (uint j = 0; j < POSITIONS / N; j++) {
        Right key;
        const uint at = (KEYS + j * N) * ROW_QUADS + part * K / 8;
        coopMatLoad(key, stage, at, ROW_QUADS, gl_CooperativeMatrixLayoutColumnMajor);
        matmuls[j] = coopMatMulAdd(query, key, matmuls[j]);
    }
}

// Matmuls of the subgroup's rows of q and the keys, into their rows of scores.
void score_block() {
    [[unroll]] for (uint j = 0; j < POSITIONS / N; j++) {
        matmuls[j] = Sums(0.0);
    }
    if (Q_SHARED == 1) {
        for (uint part = 0; part < HEAD_DIM / K; part++) {
            Left query;
            coopMatLoad(
                query, stage, query_at(part), ROW_QUADS, gl_CooperativeMatrixLayoutRowMajor);
            multiply_keys(query, part);
        }
    } else {
        [[unroll]] for (uint part = 0; part < HEAD_DIM / K; part++) {
            multiply_keys(queries[part], part);
        }
    }
    [[unroll]] for (uint j = 0; j < POSITIONS / N; j++) {
        const uint at = row_first * SCORE_QUADS + j * N / 4;
        coopMatStore(matmuls[j], scores, at, SCORE_QUADS, gl_CooperativeMatrixLayoutRowMajor);
    }
}

// Lanes that share a row, and the positions of a block that each of them owns.
const uint SHARERS = LANES / M;
const uint OWN = POSITIONS / SHARERS;

// Of a row: a softmax over the positions so far.
struct Softmax {
    float best;  // largest score
    float total; // of this lane's weights exp(score - best)
};

// Has the row's sums multiplied by a factor.
void put_factor(uint row, uint sharer, float factor) {
    for (uint i = sharer; i < N / 4; i += SHARERS) {
        scores[row * SCORE_QUADS + WEIGHT_QUADS + i] = floatBitsToUint(vec4(factor));
    }
}

void multiply_sums() {
    Sums factors;
    const uint at = row_first * SCORE_QUADS + WEIGHT_QUADS;
    coopMatLoad(factors, scores, at, SCORE_QUADS, gl_CooperativeMatrixLayoutRowMajor);
    [[unroll]] for (uint n = 0; n < HEAD_DIM / N; n++) {
        sums[n] = sums[n] * factors;
    }
}

float weights[OWN]; // of the lane's positions; scores at first

// Reads the scores of the lane's row, which sees the positions from `begin` to `end`.
void take_scores(uint row, uint sharer, uint block, uint begin, uint end) {
    const float factor = scale;
    const float cap = soft_cap;
    [[unroll]] for (uint i = 0; i < OWN / 4; i++) {
        const uint own = sharer * OWN / 4 + i;
        const vec4 four = uintBitsToFloat(scores[row * SCORE_QUADS + own]) * factor;
        [[unroll]] for (uint c = 0; c < 4; c++) {
            const uint at = block + 4 * own + c;
            const float s = cap > 0.0 ? cap * tanh(clamp(four[c] / cap, -15.0, 15.0)) : four[c];
            weights[4 * i + c] = begin <= at && at <= end ? s : LOWEST;
        }
    }
}

// Puts the weights that these make in their place.
void put_weights(uint row, uint sharer, inout Softmax all) {
    float best = LOWEST;
    [[unroll]] for (uint i = 0; i < OWN; i++) {
        best = max(best, weights[i]);
    }
    [[unroll]] for (uint step = M; step < LANES; step *= 2) {
        best = max(best, subgroupShuffleXor(best, step));
    }
    best = max(best, all.best);
    const float shrink = exp(all.best - best);
    float total = all.total * shrink;
    [[unroll]] for (uint i = 0; i < OWN / 8; i++) {
        vec4 eight[2];
        [[unroll]] for (uint c = 0; c < 8; c++) {
            // Not by the exponential alone: where nothing is seen, `best` is LOWEST too.
            const float w = weights[8 * i + c];
            eight[c / 4][c % 4] = w > LOWEST ? exp(w - best) : 0.0;
        }
        const uvec4 packed = halves(eight[0], eight[1]);
        scores[row * SCORE_QUADS + sharer * OWN / 8 + i] = packed;
        [[unroll]] for (uint c = 0; c < 4; c++) {
            const f16vec2 pair = unpackFloat2x16(packed[c]);
            total += float(pair.x) + float(pair.y); // as they are multiplied
        }
    }
    put_factor(row, sharer, shrink);
    all = Softmax(best, total);
}

// Adds the values of a block, by their weights, to the subgroup's sums.
void add_values() {
    multiply_sums();
    for (uint part = 0; part < POSITIONS / K; part++) {
        Left left;
        const uint from = row_first * SCORE_QUADS + part * K / 8;
        coopMatLoad(left, scores, from, SCORE_QUADS, gl_CooperativeMatrixLayoutRowMajor);
        [[unroll]] for (uint n = 0; n < HEAD_DIM / N; n++) {
            Right values;
            const uint at = (VALUES + part * K) * ROW_QUADS + n * N / 8;
            coopMatLoad(values, stage, at, ROW_QUADS, gl_CooperativeMatrixLayoutRowMajor);
            sums[n] = coopMatMulAdd(left, values, sums[n]);
        }
    }
}

const uint SUM_QUADS = M * N / 4; // of a fragment

// Divides the sums by the totals and writes them, by way of the rows of scores. A subgroup without
// rows writes nothing.
void finish(uint row, uint sharer, float total) {
    [[unroll]] for (uint step = M; step < LANES; step *= 2) {
        total += subgroupShuffleXor(total, step);
    }
    put_factor(row, sharer, 1.0 / total);
    subgroupBarrier(); // the factors are there
    multiply_sums();
    subgroupBarrier(); // they have been read
    [[unroll]] for (uint n = 0; n < HEAD_DIM / N; n++) {
        coopMatStore(sums[n], scores, row_first * SCORE_QUADS, SCORE_QUADS,
            gl_CooperativeMatrixLayoutRowMajor);
        subgroupBarrier(); // the sums are there
        // Unrolled as well: drivers unroll no loop around one that is not, and keep in memory what
        // is indexed in it.
        [[unroll]] for (uint turn = 0; turn < (SUM_QUADS + LANES - 1) / LANES; turn++) {
            const uint i = turn * LANES + gl_SubgroupInvocationID;
            const uint from = row_first + i / (N / 4);
            uint at;
            if (find_row(from, at) && i < SUM_QUADS) {
                const uvec4 four = scores[from * SCORE_QUADS + i % (N / 4)];
                y[at + (n * N) / 4 + i % (N / 4)] = uintBitsToFloat(four);
            }
        }
        subgroupBarrier(); // they have been read
    }
}

// The first position that each token sees.
uvec3 begins_of(uvec3 token) {
    const uint window_tokens = window;
    if (CAUSAL == 0 || window_tokens == 0) {
        return uvec3(0);
    }
    const uvec3 behind = uvec3(steps[token.x].y, steps[token.y].y, steps[token.z].y) + 1;
    return max(behind, window_tokens) - window_tokens;
}

// And the last.
uvec3 ends_of(uvec3 token) {
    return CAUSAL == 1 ? uvec3(steps[token.x].y, steps[token.y].y, steps[token.z].y)
                       : uvec3(tile.z - 1);
}

void main() {
    // The last tiles of a prompt see the most: they begin first.
    tile = tiles[gl_NumWorkGroups.x - 1 - gl_WorkGroupID.x];
    head_count = heads;
    kv_head_count = kv_heads;
    kv_head = gl_WorkGroupID.y / head_parts;
    row_first = gl_SubgroupID * M;
    const uint table = steps[tile.x].z * table_stride;
    const uint row = row_first + gl_SubgroupInvocationID % M;
    const uint sharer = gl_SubgroupInvocationID / M;

    // What the tile sees, what the subgroup does, and what the lane's row does.
    const uvec3 first = uvec3(tile.x, token_of(row_first), token_of(row));
    const uvec3 last = uvec3(tile.x + tile.y - 1, token_of(row_first + M - 1), first.z);
    const uvec3 begin = begins_of(first);
    const uvec3 end = ends_of(last);
    const bool is_there = row_first / HEADS < tile.y;

    stage_queries();
    barrier(); // q is there
    if (Q_SHARED == 0) {
        [[unroll]] for (uint part = 0; part < HEAD_DIM / K; part++) {
            coopMatLoad(queries[part], stage, query_at(part), ROW_QUADS,
                gl_CooperativeMatrixLayoutRowMajor);
        }
        barrier(); // it has been read: keys take its place
    }
    [[unroll]] for (uint n = 0; n < HEAD_DIM / N; n++) {
        sums[n] = Sums(0.0);
    }
    Softmax all = Softmax(LOWEST, 0.0);
    uint block = begin.x / POSITIONS * POSITIONS;
    uint page = tables[table + block / PAGE_TOKENS];
    fetch(page, block, end.x, false);
    put(KEYS, false);
    barrier(); // the first keys are there
    // All subgroups come to every barrier: to software drivers each is one of the workgroup.
    while (block <= end.x) {
        fetch(page, block, end.x, true);
        const bool sees = is_there && block <= end.y && begin.y < block + POSITIONS;
        if (sees) {
            score_block();
        }
        subgroupBarrier(); // the scores are there
        if (sees) {
            take_scores(row, sharer, block, begin.z, end.z);
        }
        subgroupBarrier(); // they have been read: weights take their place
        if (sees) {
            put_weights(row, sharer, all);
        }
        put(VALUES, true);
        barrier(); // values and weights are there, and the keys have been read
        block += POSITIONS;
        const bool goes_on = block <= end.x;
        if (goes_on) {
            page = tables[table + block / PAGE_TOKENS];
            fetch(page, block, end.x, false);
        }
        if (sees) {
            add_values();
        }
        if (goes_on) {
            put(KEYS, false);
        }
        barrier(); // the next keys are there, and values and weights have been read
    }
    finish(row, sharer, all.total);
}
