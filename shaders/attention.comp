// attention: attention, causal or not, of the tokens of a tile over their session's KV pages, by
// online softmax.
//
// A workgroup takes ROWS rows: TILE_TOKENS neighbouring tokens of one session times HEADS of the
// query heads that share a kv head, so that each key and value loaded serves ROWS rows. Lanes own
// positions while scores are made, and dimensions while values are added up. Keys are taken LANES
// at a time from a multiple of LANES on: the order of summation of a row depends on its position
// alone.
//
// Dispatch   (tiles, kv_heads * head_parts, 1); local size (LANES, 1, 1)
// Binding 0  q       readonly  f32 [tokens, heads * HEAD_DIM]
// Binding 1  steps   readonly  uvec4 [tokens]: token id, position, block table, unused
// Binding 2  tiles   readonly  uvec4 [tiles]: first token, tokens, keys of the session, unused
// Binding 3  tables  readonly  u32 [block tables, table_stride]
// Binding 4  kv      readonly  quads of this layer's pages (include/pages.glsl)
// Binding 5  values  readonly  the same pages as words
// Binding 6  y       f32 [tokens, heads * HEAD_DIM]
// Needs      HEAD_DIM a multiple of 8; subgroup shuffle and broadcast with SUBGROUPS=1
// Numerics   f32; within 1e-5 of the twin
//
// Variant attention: SUBGROUPS=1
// Variant attention_shared: SUBGROUPS=0
#version 460
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require

layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 0) const uint LANES = 8;
layout(constant_id = 1) const uint LOCAL_Y = 1;
layout(constant_id = 2) const uint LOCAL_Z = 1;
layout(constant_id = 3) const uint HEAD_DIM = 64;
layout(constant_id = 4) const uint KV_FORMAT = 1; // of the pages (include/pages.glsl)
layout(constant_id = 5) const uint TILE_TOKENS = 1;
layout(constant_id = 6) const uint HEADS = 1;   // query heads of a workgroup
layout(constant_id = 7) const uint CAUSAL = 1;  // 0: a token sees those behind it too

layout(push_constant) uniform Params {
    uint heads;
    uint kv_heads;
    uint head_parts;   // workgroups that share the query heads of a kv head
    uint table_stride; // in pages
    uint window;       // positions a token sees, itself included; 0: all
    float scale;       // of the scores
    float soft_cap;    // 0: none
};
layout(std430, binding = 0) readonly buffer Q { vec4 q[]; };
layout(std430, binding = 1) readonly buffer Steps { uvec4 steps[]; };
layout(std430, binding = 2) readonly buffer Tiles { uvec4 tiles[]; };
layout(std430, binding = 3) readonly buffer Tables { uint tables[]; };
layout(std430, binding = 4) readonly buffer Kv { uvec4 kv[]; };
layout(std430, binding = 5) readonly buffer Values { uint values[]; };
layout(std430, binding = 6) buffer Y { float y[]; };

const uint ROWS = TILE_TOKENS * HEADS;
const uint SPREAD = LANES < 8 ? LANES : 8;
const uint Q_QUADS = HEAD_DIM / 4;         // vec4 of a head
const uint CHUNKS = (Q_QUADS + 7) / 8;     // of 32 dimensions; the last may be part full
const uint Q_LOADS = (Q_QUADS + SPREAD - 1) / SPREAD; // vec4 of q a lane holds for each row
#define ROWS_Y 1
#define LANE_SLOTS (ROWS * Q_LOADS + ROWS)
#include "lanes.glsl"
#include "pages.glsl"

const uint V_WORDS = (KV_WORDS + LANES - 1) / LANES;     // words of a value that a lane owns
const uint V_DIMS = KV_PER_WORD * V_WORDS;           // dimensions

const float LOWEST = -1e30;

// Up to 32 dimensions, from 32 * `chunk` on, of the key of one position.
void load_key(uint page, uint kv_head, uint slot, uint chunk, out vec4 key[8]) {
    const uint quad = k_word(page, kv_heads, kv_head, slot, chunk * 32) / 4;
    const uint left = Q_QUADS - chunk * 8; // vec4 of the head from there on
    if (KV_FORMAT == KV_Q8_0) {
        const uint scale_word = k_scale_word(page, kv_heads, kv_head, slot, chunk / 2);
        const vec2 scales = unpackHalf2x16(values[scale_word]);
        const float scale = chunk % 2 == 0 ? scales.x : scales.y;
        [[unroll]] for (int i = 0; i < 2; i++) {
            const uvec4 k = kv[quad + i * PAGE_TOKENS];
            [[unroll]] for (int c = 0; c < 4; c++) {
                key[4 * i + c] = kv_codes(k[c]) * scale;
            }
        }
    } else if (KV_FORMAT == KV_F16) {
        [[unroll]] for (int i = 0; i < 4; i++) {
            if (2 * i >= left) {
                break;
            }
            uvec4 k = kv[quad + i * PAGE_TOKENS];
            key[2 * i] = vec4(unpackHalf2x16(k.x), unpackHalf2x16(k.y));
            key[2 * i + 1] = vec4(unpackHalf2x16(k.z), unpackHalf2x16(k.w));
        }
    } else {
        [[unroll]] for (int i = 0; i < 8; i++) {
            if (i >= left) {
                break;
            }
            key[i] = uintBitsToFloat(kv[quad + i * PAGE_TOKENS]);
        }
    }
}

// The values of a word of V, behind the first `at` of `value`.
void put_word(uint word, uint at, float scale, inout float value[V_DIMS]) {
    if (KV_FORMAT == KV_Q8_0) {
        const vec4 codes = kv_codes(word) * scale;
        [[unroll]] for (int i = 0; i < 4; i++) {
            value[at + i] = codes[i];
        }
    } else if (KV_FORMAT == KV_F16) {
        const vec2 pair = unpackHalf2x16(word);
        value[at] = pair.x;
        value[at + 1] = pair.y;
    } else {
        value[at] = uintBitsToFloat(word);
    }
}

// The scale of word `word` of a value; 1 where the format has none.
float v_scale(uint page, uint kv_head, uint slot, uint word) {
    if (KV_FORMAT != KV_Q8_0) {
        return 1.0;
    }
    const uint block = word / (KV_BLOCK / 4);
    const uint scale_word = v_scale_word(page, kv_heads, kv_head, slot, block / 2);
    const vec2 scales = unpackHalf2x16(values[scale_word]);
    return block % 2 == 0 ? scales.x : scales.y;
}

// The dimensions of a value that this lane owns.
void load_value(uint page, uint kv_head, uint slot, out float value[V_DIMS]) {
    const uint own = gl_LocalInvocationID.x * V_WORDS;
    const bool inside = own < KV_WORDS;
    const uint word = v_word(page, kv_heads, kv_head, slot, 0) + own;
    if (V_WORDS % 4 == 0) {
        [[unroll]] for (uint i = 0; i < V_WORDS / 4; i++) {
            const uvec4 v = inside ? kv[word / 4 + i] : uvec4(0);
            const float scale = inside ? v_scale(page, kv_head, slot, own + 4 * i) : 0.0;
            [[unroll]] for (uint c = 0; c < 4; c++) {
                put_word(v[c], (4 * i + c) * KV_PER_WORD, scale, value);
            }
        }
    } else {
        [[unroll]] for (uint i = 0; i < V_WORDS; i++) {
            const bool there = own + i < KV_WORDS;
            const float scale = there ? v_scale(page, kv_head, slot, own + i) : 0.0;
            put_word(there ? values[word + i] : 0, i * KV_PER_WORD, scale, value);
        }
    }
}

void main() {
    const uint lane = gl_LocalInvocationID.x;
    const uvec4 tile = tiles[gl_WorkGroupID.x];
    const uint kv_head = gl_WorkGroupID.y / head_parts;
    const uint group = heads / kv_heads;
    const uint head_first = gl_WorkGroupID.y % head_parts * HEADS;
    const uint table = steps[tile.x].z * table_stride;

    // Row j: token j / HEADS of the tile, head j % HEADS. Rows past the end repeat the last one and
    // are not stored.
    uint position[TILE_TOKENS];
    [[unroll]] for (uint t = 0; t < TILE_TOKENS; t++) {
        position[t] = steps[tile.x + min(t, tile.y - 1)].y;
    }
    uint row_at[ROWS]; // of q and y, in floats
    vec4 queries[ROWS][Q_LOADS];
    float out_sum[ROWS][V_DIMS];
    float best[ROWS];
    float total[ROWS];
    lanes_begin();
    [[unroll]] for (uint j = 0; j < ROWS; j++) {
        uint token = tile.x + min(j / HEADS, tile.y - 1);
        uint head = kv_head * group + min(head_first + j % HEADS, group - 1);
        row_at[j] = (token * heads + head) * HEAD_DIM;
        [[unroll]] for (uint i = 0; i < Q_LOADS; i++) {
            // The last load may pass the end of the head: those values are never asked for.
            uint at = min(i * SPREAD + lane % SPREAD, Q_QUADS - 1);
            queries[j][i] = q[row_at[j] / 4 + at] * scale;
            lanes_put(j * Q_LOADS + i, queries[j][i]);
        }
        best[j] = LOWEST;
        total[j] = 0.0;
        [[unroll]] for (uint i = 0; i < V_DIMS; i++) {
            out_sum[j][i] = 0.0;
        }
    }
    lanes_ready();

    const uint last = CAUSAL == 1 ? position[TILE_TOKENS - 1] : tile.z - 1;
    const uint start = window > 0 && position[0] >= window ? position[0] - window + 1 : 0;
    for (uint block = start / LANES * LANES; block <= last; block += LANES) {
        const uint key_at = block + lane;
        const uint key_safe = min(key_at, last); // a page past the last one may not be leased
        const uint page = tables[table + key_safe / PAGE_TOKENS];
        const uint slot = key_safe % PAGE_TOKENS;

        float score[ROWS];
        [[unroll]] for (uint j = 0; j < ROWS; j++) {
            score[j] = 0.0;
        }
        [[unroll]] for (uint c = 0; c < CHUNKS; c++) {
            vec4 key[8];
            load_key(page, kv_head, slot, c, key);
            [[unroll]] for (uint j = 0; j < ROWS; j++) {
                [[unroll]] for (uint i = 0; i < 8; i++) {
                    const uint at = c * 8 + i;
                    if (at >= Q_QUADS) {
                        break;
                    }
                    const uint load = at / SPREAD;
                    vec4 v = lanes_get(j * Q_LOADS + load, at % SPREAD, queries[j][load]);
                    score[j] += (v.x * key[i].x + v.y * key[i].y)
                        + (v.z * key[i].z + v.w * key[i].w);
                }
            }
        }

        vec4 weight[ROWS]; // of this lane's position; x alone is used
        [[unroll]] for (uint j = 0; j < ROWS; j++) {
            const uint at = position[j / HEADS];
            const bool in_window = key_at <= at && (window == 0 || at - key_at < window);
            const bool visible = CAUSAL == 1 ? in_window : key_at <= last;
            float s = score[j];
            if (soft_cap > 0.0) {
                s = soft_cap * tanh(clamp(s / soft_cap, -15.0, 15.0));
            }
            const float best_new = max(best[j], lanes_max(visible ? s : LOWEST));
            const float shrink = exp(best[j] - best_new);
            weight[j] = vec4(visible ? exp(s - best_new) : 0.0);
            best[j] = best_new;
            total[j] = total[j] * shrink + weight[j].x;
            [[unroll]] for (uint i = 0; i < V_DIMS; i++) {
                out_sum[j][i] *= shrink;
            }
        }
        lanes_begin();
        [[unroll]] for (uint j = 0; j < ROWS; j++) {
            lanes_put(ROWS * Q_LOADS + j, weight[j]);
        }
        lanes_ready();

        for (uint first = 0; first < LANES; first += SPREAD) {
            if (block + first > last) {
                break;
            }
            [[unroll]] for (uint i = 0; i < SPREAD; i++) {
                const uint value_at = min(block + first + i, last);
                const uint value_page = tables[table + value_at / PAGE_TOKENS];
                float value[V_DIMS];
                load_value(value_page, kv_head, value_at % PAGE_TOKENS, value);
                [[unroll]] for (uint j = 0; j < ROWS; j++) {
                    float w = lanes_get(ROWS * Q_LOADS + j, first + i, weight[j]).x;
                    [[unroll]] for (uint d = 0; d < V_DIMS; d++) {
                        out_sum[j][d] += w * value[d];
                    }
                }
            }
        }
    }

    [[unroll]] for (uint j = 0; j < ROWS; j++) {
        const float sum = lanes_sum(total[j], LANES);
        if (j / HEADS < tile.y && head_first + j % HEADS < group) {
            [[unroll]] for (uint d = 0; d < V_DIMS; d++) {
                if (lane * V_DIMS + d < HEAD_DIM) {
                    y[row_at[j] + lane * V_DIMS + d] = out_sum[j][d] / sum;
                }
            }
        }
    }
}
