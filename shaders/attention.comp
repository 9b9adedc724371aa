// attention: attention, causal or not, of the tokens of a tile over their session's KV pages, by
// online softmax.
//
// A workgroup takes ROWS rows: TILE_TOKENS neighbouring tokens of one session times HEADS of the
// query heads that share a kv head, so that each key and value loaded serves ROWS rows. Lanes own
// positions while scores are made, and dimensions while values are added up.
//
// Positions are taken in blocks, and blocks in splits of SPLIT positions, which each have a softmax
// of their own; what splits give is joined in their order. Both begin at multiples of their size:
// the order of summation of a row depends on its position alone. With SPLIT_GRID a workgroup takes
// one split, and the last to be done joins them; else it takes them one after another.
//
// Dispatch   (tiles, kv_heads * head_parts, splits with SPLIT_GRID); local size (LANES, 1, 1)
// Binding 0  kv        readonly  quads of this layer's pages (include/pages.glsl)
// Binding 1  q         readonly  f32 [tokens, heads * HEAD_DIM]
// Binding 2  steps     readonly  uvec4 [tokens]: token id, position, block table, unused
// Binding 3  tiles     readonly  uvec4 [tiles]: first token, tokens, keys of the session, unused
// Binding 4  tables    readonly  u32 [block tables, table_stride]
// Binding 5  kv_words  readonly  the same pages as words
// Binding 6  y         f32 [tokens, heads * HEAD_DIM]
// Binding 7  partials  f32 [tiles, kv_heads * head_parts, splits, ROWS, PARTIAL], with SPLIT_GRID
// Binding 8  done      u32 [tiles, kv_heads * head_parts], with SPLIT_GRID: zeroes before and after
// Needs      HEAD_DIM a multiple of 8; subgroup shuffle and broadcast with SUBGROUPS=1; LANES = 8
//            and buffer addresses with COOPERATIVE=1
// Numerics   f32; within 1e-5 of the twin
//
// Variant attention: SUBGROUPS=1
// Variant attention_shared: SUBGROUPS=0
// Variant attention_cooperative: SUBGROUPS=1 COOPERATIVE=1
#version 460
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#if COOPERATIVE
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require
#endif

layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 0) const uint LANES = 8;
layout(constant_id = 1) const uint LOCAL_Y = 1;
layout(constant_id = 2) const uint LOCAL_Z = 1;
layout(constant_id = 3) const uint HEAD_DIM = 64;
layout(constant_id = 4) const uint KV_FORMAT = 1; // of the pages (include/pages.glsl)
layout(constant_id = 5) const uint KEY_WORDS = 4; // of the pages
layout(constant_id = 6) const uint TILE_TOKENS = 1;
layout(constant_id = 7) const uint HEADS = 1;  // query heads of a workgroup
layout(constant_id = 8) const uint CAUSAL = 1; // 0: a token sees those behind it too
layout(constant_id = 9) const uint SPLIT_GRID = 0;

layout(push_constant) uniform Params {
    uvec2 kv_address; // with COOPERATIVE
    uvec2 q_address;  // with COOPERATIVE
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
layout(std430, binding = 6) buffer Y { float y[]; };
layout(std430, binding = 7) coherent buffer Partials { float partials[]; };
layout(std430, binding = 8) coherent buffer Done { uint done[]; };

const uint SPLIT = 256; // src/kernels/attention.rs: SPLIT_TOKENS
const uint ROWS = TILE_TOKENS * HEADS;
const uint SPREAD = LANES < 8 ? LANES : 8;
const uint Q_QUADS = HEAD_DIM / 4;         // vec4 of a head
const uint CHUNKS = (Q_QUADS + 7) / 8;     // of 32 dimensions; the last may be part full
const uint Q_LOADS = (Q_QUADS + SPREAD - 1) / SPREAD; // vec4 of q a lane holds for each row
#define ROWS_Y 1
#define LANE_SLOTS (ROWS * Q_LOADS + ROWS)
#include "lanes.glsl"
#include "pages.glsl"

const uint V_WORDS = (KV_WORDS + LANES - 1) / LANES; // words of a value that a lane owns
const uint V_DIMS = KV_PER_WORD * V_WORDS;           // dimensions
const uint PARTIAL = LANES * V_DIMS + 2;             // a split's sums, its largest score and total

const float LOWEST = -1e30;

// Drivers load push constants where they are named, and check each: hoisted by hand.
uint kv_head_count;
uint kv_head;
#if COOPERATIVE
uvec2 kv_base;
uvec2 q_base;
#include "attend_cooperative.glsl"
#else
#include "attend_lanes.glsl"
#endif

const uint BLOCK = GROUPS * LANES;

// Of one row: a softmax over the positions so far.
struct Softmax {
    float best;  // largest score
    float total; // sum of the weights exp(score - best)
};

// What the sums so far are multiplied by as those of another softmax join, and those by.
vec2 join(inout Softmax all, Softmax part) {
    const float best = max(all.best, part.best);
    const vec2 factors = vec2(exp(all.best - best), exp(part.best - best));
    precise float total = all.total * factors.x + part.total * factors.y;
    all = Softmax(best, total);
    return factors;
}

float joined(float all, float part, vec2 factors) {
    precise float sum = all * factors.x + part * factors.y;
    return sum;
}

// The split of a workgroup. There may be fewer splits than workgroups, and software drivers give
// each thread a run of neighbours: in reversed order of bits every run has its share of the splits.
uint split_of(uint workgroup, uint workgroups) {
    const bool is_power = (workgroups & (workgroups - 1)) == 0;
    if (SPLIT_GRID == 0 || workgroups == 1 || !is_power) {
        return workgroup;
    }
    return bitfieldReverse(workgroup) >> (32 - findMSB(workgroups));
}

void main() {
#if COOPERATIVE
    const uint lane = gl_SubgroupInvocationID;
#else
    const uint lane = gl_LocalInvocationID.x;
#endif
    const uvec4 tile = tiles[gl_WorkGroupID.x];
    const uint head_count = heads;
    const uint parts = head_parts;
    const uint window_tokens = window;
    const float factor = scale;
    const float cap = soft_cap;
    kv_head_count = kv_heads;
    kv_head = gl_WorkGroupID.y / parts;
#if COOPERATIVE
    kv_base = kv_address;
    q_base = q_address;
#endif
    const uint group = head_count / kv_head_count;
    const uint head_first = gl_WorkGroupID.y % parts * HEADS;
    const uint table = steps[tile.x].z * table_stride;

    // Row j: token j / HEADS of the tile, head j % HEADS. Rows past the end repeat the last one and
    // are not stored.
    uint position[TILE_TOKENS];
    [[unroll]] for (uint t = 0; t < TILE_TOKENS; t++) {
        position[t] = steps[tile.x + min(t, tile.y - 1)].y;
    }
    const uint last = CAUSAL == 1 ? position[TILE_TOKENS - 1] : tile.z - 1;
    const uint start = window_tokens > 0 && position[0] >= window_tokens
        ? position[0] - window_tokens + 1
        : 0;
    const uint split_first = start / SPLIT;
    const uint split_count = last / SPLIT + 1 - split_first;
    uint split = split_of(gl_WorkGroupID.z, gl_NumWorkGroups.z); // behind the first
    if (split >= split_count) {
        return;
    }

    uint row_at[ROWS]; // of q and y, in floats
    bool row_there[ROWS];
    Softmax all[ROWS];
    [[unroll]] for (uint j = 0; j < ROWS; j++) {
        const uint token = tile.x + min(j / HEADS, tile.y - 1);
        const uint head = kv_head * group + min(head_first + j % HEADS, group - 1);
        row_at[j] = (token * head_count + head) * HEAD_DIM;
        row_there[j] = j / HEADS < tile.y && head_first + j % HEADS < group;
        all[j] = Softmax(LOWEST, 0.0);
    }
    take_queries(row_at);

    // Loops end with their last turn: see page_of in attend_cooperative.glsl.
    do {
        float sums[ROWS][V_DIMS];
        Softmax part[ROWS];
        [[unroll]] for (uint j = 0; j < ROWS; j++) {
            part[j] = Softmax(LOWEST, 0.0);
            [[unroll]] for (uint d = 0; d < V_DIMS; d++) {
                sums[j][d] = 0.0;
            }
        }
        const uint split_at = (split_first + split) * SPLIT;
        const uint block_last = min(last, split_at + SPLIT - 1);
        uint block = max(start / BLOCK * BLOCK, split_at);
        do {
            float weight[ROWS][GROUPS]; // of this lane's positions; scores at first
            score_block(table, block, last, row_at, weight);
            [[unroll]] for (uint j = 0; j < ROWS; j++) {
                const uint at = position[j / HEADS];
                float best = LOWEST;
                [[unroll]] for (uint g = 0; g < GROUPS; g++) {
                    const uint key_at = block + g * LANES + lane;
                    const bool in_window =
                        key_at <= at && (window_tokens == 0 || at - key_at < window_tokens);
                    float s = weight[j][g] * factor;
                    // By the bits: comparisons, clamps and drivers lose a NaN. It must reach the
                    // logits, as a number in its place would pass for a result.
                    const bool is_nan = (floatBitsToUint(s) & 0x7fffffffu) > 0x7f800000u;
                    if (cap > 0.0) {
                        s = cap * tanh(clamp(s / cap, -15.0, 15.0));
                    }
                    const bool sees = CAUSAL == 1 ? in_window : key_at <= last;
                    weight[j][g] = sees && !is_nan ? s : LOWEST;
                    if (sees && is_nan) {
                        part[j].total = uintBitsToFloat(0x7fc00000u);
                    }
                    best = max(best, weight[j][g]);
                }
                best = max(part[j].best, lanes_max(best));
                const float shrink = exp(part[j].best - best);
                float total = part[j].total * shrink; // of this lane's positions
                [[unroll]] for (uint g = 0; g < GROUPS; g++) {
                    // Not by the exponential alone: where nothing is seen, `best` is LOWEST too.
                    weight[j][g] = weight[j][g] > LOWEST ? exp(weight[j][g] - best) : 0.0;
                    total += weight[j][g];
                }
                part[j] = Softmax(best, total);
                [[unroll]] for (uint d = 0; d < V_DIMS; d++) {
                    sums[j][d] *= shrink;
                }
            }
            add_values(table, block, last, weight, sums);
            block += BLOCK;
        } while (block <= block_last);

        [[unroll]] for (uint j = 0; j < ROWS; j++) {
            part[j].total = lanes_sum(part[j].total, LANES);
            const vec2 factors = join(all[j], part[j]);
            const bool is_only = split_count == 1;
            const bool is_last = split + 1 == split_count;
            if (SPLIT_GRID == 1 && !is_only) {
                const uint place = gl_WorkGroupID.x * gl_NumWorkGroups.y + gl_WorkGroupID.y;
                const uint at = ((place * gl_NumWorkGroups.z + split) * ROWS + j) * PARTIAL;
                [[unroll]] for (uint d = 0; d < V_DIMS; d++) {
                    partials[at + d * LANES + lane] = sums[j][d];
                }
                if (lane == 0) {
                    partials[at + PARTIAL - 2] = part[j].best;
                    partials[at + PARTIAL - 1] = part[j].total;
                }
            } else if (row_there[j]) {
                // Between splits y has the sums so far: each lane reads what it wrote.
                [[unroll]] for (uint d = 0; d < V_DIMS; d++) {
                    const uint dim = dim_of(lane, d);
                    if (dim < HEAD_DIM) {
                        float sum = sums[j][d];
                        if (split > 0) {
                            sum = joined(y[row_at[j] + dim], sum, factors);
                        }
                        y[row_at[j] + dim] = is_last ? sum / all[j].total : sum;
                    }
                }
            }
        }
        split += gl_NumWorkGroups.z;
    } while (split < split_count);

    if (SPLIT_GRID == 1 && split_count > 1) {
        const uint place = gl_WorkGroupID.x * gl_NumWorkGroups.y + gl_WorkGroupID.y;
        // Every lane counts for itself, behind its own sums: a barrier would have software drivers
        // suspend each lane.
        memoryBarrierBuffer();
        const float before = float(atomicAdd(done[place], 1));
        if (lanes_max(before) < float(LANES * split_count - 1)) {
            return;
        }
        memoryBarrierBuffer();
        if (lane == 0) {
            done[place] = 0;
        }
        [[unroll]] for (uint j = 0; j < ROWS; j++) {
            float sums[V_DIMS];
            [[unroll]] for (uint d = 0; d < V_DIMS; d++) {
                sums[d] = 0.0;
            }
            all[j] = Softmax(LOWEST, 0.0);
            for (uint from = 0; from < split_count; from++) {
                const uint at = ((place * gl_NumWorkGroups.z + from) * ROWS + j) * PARTIAL;
                const uint behind_sums = at + PARTIAL - 2;
                const Softmax part = Softmax(partials[behind_sums], partials[behind_sums + 1]);
                const vec2 factors = join(all[j], part);
                [[unroll]] for (uint d = 0; d < V_DIMS; d++) {
                    const float sum = partials[at + d * LANES + lane];
                    sums[d] = from > 0 ? joined(sums[d], sum, factors) : sum;
                }
            }
            [[unroll]] for (uint d = 0; d < V_DIMS; d++) {
                if (row_there[j] && dim_of(lane, d) < HEAD_DIM) {
                    y[row_at[j] + dim_of(lane, d)] = sums[d] / all[j].total;
                }
            }
        }
    }
}
