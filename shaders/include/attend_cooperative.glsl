// Scores and sums of values where lanes load together, a page at a time: a word whose address is
// the same for all lanes is loaded once, and eight neighbouring words, one for each lane, by one
// load of a vector.
//
// The including shader defines what pages.glsl asks for, ROWS and the variables below it.

const uint GROUPS = PAGE_TOKENS / LANES; // positions of a block that a lane owns

// Words of a key in one turn of the loop: 8 dimensions, or a block.
const uint UNIT = KV_FORMAT == KV_Q8_0 ? 8 : 8 / KV_PER_WORD;

layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer Words { uint at[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Quads { uvec4 at[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer Floats { float at[]; };

// The dimension that is number `d` of those whose sums lane `lane` owns.
uint dim_of(uint lane, uint d) {
    return (d / KV_PER_WORD * LANES + lane) * KV_PER_WORD + d % KV_PER_WORD;
}

// Whether this lane is number i: constants to a driver only where they come before all loops.
bool is_lane[LANES];

void take_queries(uint row_at[ROWS]) {
    [[unroll]] for (uint i = 0; i < LANES; i++) {
        is_lane[i] = gl_SubgroupInvocationID == i;
    }
}

// A driver folds offsets from here on into its loads as long as they are constant.
uvec2 behind(uvec2 address, uint words) {
    uint carry;
    const uint low = uaddCarry(address.x, 4 * words, carry);
    return uvec2(low, address.y + carry);
}

// For each lane its own of LANES words, of which `count`, 4 or more, are there. All loads are made
// by all lanes: it is a choice among values, that a driver can see are two quads in memory.
uint load_lanes(Words from, uint first, uint count) {
    uint own = 0;
    [[unroll]] for (uint i = 0; i < LANES; i += 4) {
        const uvec4 quad = Quads(uvec2(from)).at[first / 4 + (i < count ? i / 4 : 0)];
        [[unroll]] for (uint c = 0; c < 4; c++) {
            own = mix(own, quad[c], is_lane[i + c]);
        }
    }
    return own;
}

// The values of a word, in the first places.
vec4 unpacked(uint word) {
    if (KV_FORMAT == KV_Q8_0) {
        return kv_codes(word);
    }
    if (KV_FORMAT == KV_F16) {
        return vec4(unpackHalf2x16(word), 0.0, 0.0);
    }
    return vec4(uintBitsToFloat(word), 0.0, 0.0, 0.0);
}

// The page of a block. Loops come to their end with their last turn: a software driver runs what is
// left of a turn in which no lane takes part, and loads that all lanes share know no lanes. Where
// that cannot be helped, addresses stay within what is leased.
uint page_of(uint table, uint block, uint last) {
    return tables[table + min(block, last) / PAGE_TOKENS];
}

// Matmuls of q and the keys of a page's positions, among them those past the last.
void score_block(uint table, uint block, uint last, uint row_at[ROWS], out float s[ROWS][GROUPS]) {
    const uint page = page_of(table, block, last);
    const uvec2 keys = behind(kv_base, k_word(page, kv_head_count, kv_head, 0, 0));
    [[unroll]] for (uint j = 0; j < ROWS; j++) {
        [[unroll]] for (uint g = 0; g < GROUPS; g++) {
            s[j][g] = 0.0;
        }
    }
    uint turn = 0;
    do {
        const uint first = min(turn, KV_WORDS - UNIT);
        Words from = Words(behind(keys, first * PAGE_TOKENS));
        float part[ROWS][GROUPS];
        [[unroll]] for (uint j = 0; j < ROWS; j++) {
            [[unroll]] for (uint g = 0; g < GROUPS; g++) {
                part[j][g] = KV_FORMAT == KV_Q8_0 ? 0.0 : s[j][g];
            }
        }
        [[unroll]] for (uint w = 0; w < UNIT; w++) {
            [[unroll]] for (uint g = 0; g < GROUPS; g++) {
                const vec4 key = unpacked(load_lanes(from, w * PAGE_TOKENS + g * LANES, LANES));
                [[unroll]] for (uint j = 0; j < ROWS; j++) {
                    Floats own = Floats(behind(q_base, row_at[j] + first * KV_PER_WORD));
                    [[unroll]] for (uint c = 0; c < KV_PER_WORD; c++) {
                        part[j][g] = fma(own.at[w * KV_PER_WORD + c], key[c], part[j][g]);
                    }
                }
            }
        }
        [[unroll]] for (uint g = 0; g < GROUPS; g++) {
            float block_scale = 1.0;
            if (KV_FORMAT == KV_Q8_0) {
                const uint word = k_scale_word(page, kv_head_count, kv_head, 0, first / 16);
                Words scales = Words(behind(kv_base, word));
                const vec2 both = unpackHalf2x16(load_lanes(scales, g * LANES, LANES));
                block_scale = first / 8 % 2 == 0 ? both.x : both.y;
            }
            [[unroll]] for (uint j = 0; j < ROWS; j++) {
                s[j][g] = KV_FORMAT == KV_Q8_0 ? fma(block_scale, part[j][g], s[j][g]) : part[j][g];
            }
        }
        turn += UNIT;
    } while (turn < KV_WORDS);
}

// Groups of positions whose values one turn of a loop adds: drivers take long to compile large
// heads at once.
const uint GROUPS_A_TURN = V_WORDS > 4 ? 1 : GROUPS;

// Adds the values of STRIP positions of a page, by their weights, to the sums.
const uint STRIP = 4;
void add_strip(
    uint page, uint slots[STRIP], float weights[ROWS][STRIP], inout float sums[ROWS][V_DIMS]) {
    Words from[STRIP];
    Words scales[STRIP];
    [[unroll]] for (uint p = 0; p < STRIP; p++) {
        from[p] = Words(behind(kv_base, v_word(page, kv_head_count, kv_head, slots[p], 0)));
        scales[p] = Words(behind(kv_base, v_scale_word(page, kv_head_count, kv_head, slots[p], 0)));
    }
    [[unroll]] for (uint i = 0; i < V_WORDS; i++) {
        vec4 value[STRIP];
        [[unroll]] for (uint p = 0; p < STRIP; p++) {
            value[p] = unpacked(load_lanes(from[p], i * LANES, KV_WORDS - i * LANES));
            if (KV_FORMAT == KV_Q8_0) {
                const vec2 both = unpackHalf2x16(scales[p].at[i / 2]);
                value[p] *= i % 2 == 0 ? both.x : both.y;
            }
        }
        [[unroll]] for (uint j = 0; j < ROWS; j++) {
            [[unroll]] for (uint c = 0; c < KV_PER_WORD; c++) {
                float sum = sums[j][i * KV_PER_WORD + c];
                [[unroll]] for (uint p = 0; p < STRIP; p++) {
                    sum = fma(weights[j][p], value[p][c], sum);
                }
                sums[j][i * KV_PER_WORD + c] = sum;
            }
        }
    }
}

// Adds the values of the block's positions, by their weights, to the sums.
void add_values(
    uint table, uint block, uint last, float weight[ROWS][GROUPS], inout float sums[ROWS][V_DIMS]) {
    const uint page = page_of(table, block, last);
    const uint last_slot = last - min(block, last); // what is behind it was not written
    uint group = 0;
    do {
        [[unroll]] for (uint g = 0; g < GROUPS_A_TURN; g++) {
            [[unroll]] for (uint first = 0; first < LANES; first += STRIP) {
                uint slots[STRIP];
                float weights[ROWS][STRIP];
                [[unroll]] for (uint p = 0; p < STRIP; p++) {
                    slots[p] = min((group + g) * LANES + first + p, last_slot);
                    [[unroll]] for (uint j = 0; j < ROWS; j++) {
                        weights[j][p] = subgroupBroadcast(weight[j][g], first + p);
                    }
                }
                add_strip(page, slots, weights, sums);
            }
        }
        [[unroll]] for (uint j = 0; j < ROWS; j++) {
            [[unroll]] for (uint g = 0; g + GROUPS_A_TURN < GROUPS; g++) {
                weight[j][g] = weight[j][g + GROUPS_A_TURN];
            }
        }
        group += GROUPS_A_TURN;
    } while (group < GROUPS);
}
