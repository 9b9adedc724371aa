// Scores and sums of values where every lane loads for itself: LANES positions at a time.
//
// The including shader defines what pages.glsl and lanes.glsl ask for, ROWS, Q_SLOTS and the
// variables below it.

const uint GROUPS = 1; // positions of a block that a lane owns

// What lanes publish: their part of q, then their positions' weights.
vec4 queries[ROWS][Q_LOADS];

// The dimension that is number `d` of those whose sums lane `lane` owns.
uint dim_of(uint lane, uint d) { return lane * V_DIMS + d; }

// Hands q, whose rows begin at `row_at`, to the lanes.
void take_queries(uint row_at[ROWS]) {
    const uint lane = gl_LocalInvocationID.x;
    lanes_begin();
    [[unroll]] for (uint j = 0; j < ROWS; j++) {
        [[unroll]] for (uint i = 0; i < Q_LOADS; i++) {
            // The last load may pass the end of the head: those values are never asked for.
            uint at = min(i * SPREAD + lane % SPREAD, Q_QUADS - 1);
            queries[j][i] = q[row_at[j] / 4 + at];
            lanes_put(j * Q_LOADS + i, queries[j][i]);
        }
    }
    lanes_ready();
}

// Up to 32 dimensions, from 32 * `chunk` on, of the key of one position.
void load_key(uint page, uint slot, uint chunk, out vec4 key[8]) {
    const uint quad = k_word(page, kv_head_count, kv_head, slot, chunk * 32) / 4;
    const uint left = Q_QUADS - chunk * 8; // vec4 of the head from there on
    if (KV_FORMAT == KV_Q8_0) {
        const uint scale_word = k_scale_word(page, kv_head_count, kv_head, slot, chunk / 2);
        const vec2 scales = unpackHalf2x16(kv_words[scale_word]);
        const float block_scale = chunk % 2 == 0 ? scales.x : scales.y;
        [[unroll]] for (int i = 0; i < 2; i++) {
            const uvec4 k = kv[quad + i * PAGE_TOKENS];
            [[unroll]] for (int c = 0; c < 4; c++) {
                key[4 * i + c] = kv_codes(k[c]) * block_scale;
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

// Matmuls of q and the keys of the block's positions; none past `last` is read.
void score_block(uint table, uint block, uint last, uint row_at[ROWS], out float s[ROWS][GROUPS]) {
    const uint key_at = min(block + gl_LocalInvocationID.x, last);
    const uint page = tables[table + key_at / PAGE_TOKENS];
    [[unroll]] for (uint j = 0; j < ROWS; j++) {
        s[j][0] = 0.0;
    }
    [[unroll]] for (uint c = 0; c < CHUNKS; c++) {
        vec4 key[8];
        load_key(page, key_at % PAGE_TOKENS, c, key);
        [[unroll]] for (uint j = 0; j < ROWS; j++) {
            [[unroll]] for (uint i = 0; i < 8; i++) {
                const uint at = c * 8 + i;
                if (at >= Q_QUADS) {
                    break;
                }
                const uint load = at / SPREAD;
                vec4 v = lanes_get(j * Q_LOADS + load, at % SPREAD, queries[j][load]);
                s[j][0] += (v.x * key[i].x + v.y * key[i].y) + (v.z * key[i].z + v.w * key[i].w);
            }
        }
    }
}

// The values of a word of V, behind the first `at` of `value`.
void put_word(uint word, uint at, float block_scale, inout float value[V_DIMS]) {
    if (KV_FORMAT == KV_Q8_0) {
        const vec4 codes = kv_codes(word) * block_scale;
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
float v_scale(uint page, uint slot, uint word) {
    if (KV_FORMAT != KV_Q8_0) {
        return 1.0;
    }
    const uint block = word / (KV_BLOCK / 4);
    const uint scale_word = v_scale_word(page, kv_head_count, kv_head, slot, block / 2);
    const vec2 scales = unpackHalf2x16(kv_words[scale_word]);
    return block % 2 == 0 ? scales.x : scales.y;
}

// The dimensions of a value that this lane owns.
void load_value(uint page, uint slot, out float value[V_DIMS]) {
    const uint own = gl_LocalInvocationID.x * V_WORDS;
    const bool inside = own < KV_WORDS;
    const uint word = v_word(page, kv_head_count, kv_head, slot, 0) + own;
    if (V_WORDS % 4 == 0) {
        [[unroll]] for (uint i = 0; i < V_WORDS / 4; i++) {
            const uvec4 v = inside ? kv[word / 4 + i] : uvec4(0);
            const float block_scale = inside ? v_scale(page, slot, own + 4 * i) : 0.0;
            [[unroll]] for (uint c = 0; c < 4; c++) {
                put_word(v[c], (4 * i + c) * KV_PER_WORD, block_scale, value);
            }
        }
    } else {
        [[unroll]] for (uint i = 0; i < V_WORDS; i++) {
            const bool there = own + i < KV_WORDS;
            const float block_scale = there ? v_scale(page, slot, own + i) : 0.0;
            put_word(there ? kv_words[word + i] : 0, i * KV_PER_WORD, block_scale, value);
        }
    }
}

// Adds the values of the block's positions, by their weights, to the sums.
void add_values(
    uint table, uint block, uint last, float weight[ROWS][GROUPS], inout float sums[ROWS][V_DIMS]) {
    lanes_begin();
    [[unroll]] for (uint j = 0; j < ROWS; j++) {
        lanes_put(ROWS * Q_LOADS + j, vec4(weight[j][0]));
    }
    lanes_ready();
    for (uint first = 0; first < LANES; first += SPREAD) {
        if (block + first > last) {
            break;
        }
        [[unroll]] for (uint i = 0; i < SPREAD; i++) {
            const uint at = min(block + first + i, last);
            float value[V_DIMS];
            load_value(tables[table + at / PAGE_TOKENS], at % PAGE_TOKENS, value);
            [[unroll]] for (uint j = 0; j < ROWS; j++) {
                float w = lanes_get(ROWS * Q_LOADS + j, first + i, vec4(weight[j][0])).x;
                [[unroll]] for (uint d = 0; d < V_DIMS; d++) {
                    sums[j][d] += w * value[d];
                }
            }
        }
    }
}
