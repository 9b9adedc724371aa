// sample: the token of each row of logits, as the row wants it chosen: the best one, or one drawn
// among those that top-k, top-p and min-p leave. src/kernels/sampling.rs says what is computed.
//
// The chunks' largest logits tell where the k-th best may be at most, so that few chunks are read.
// What may stay is listed in shared memory, and each lane holds its tokens against all others
// there: nothing is sorted. Sums are whole numbers, and do not depend on the order.
//
// Dispatch   (rows, 1, 1); local size (LANES, LOCAL_Y, 1), LOCAL_Y as many as pay
// Binding 0  logits  readonly  f32 [rows, stride]
// Binding 1  wanted  readonly  Row [rows] (include/sampling.glsl)
// Binding 2  maxima  readonly  u32 [rows, chunks, 2], by maxima
// Binding 3  chosen  u32 [rows]: a token, or NONE where logits are no numbers, or more than
//                    LIST_MAX tokens may stay
// Needs      chunks <= CHUNKS_MAX; LANES * LOCAL_Y <= 256; 16 KiB of shared memory; no subgroup
//            features
// Numerics   bit for bit as the twin
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_memory_scope_semantics : require

layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 0) const uint LANES = 8;
layout(constant_id = 1) const uint LOCAL_Y = 1;
layout(constant_id = 2) const uint LOCAL_Z = 1;

layout(push_constant) uniform Params {
    uint stride; // logits of a row
    uint chunks;
};
#include "sampling.glsl"
layout(std430, binding = 0) readonly buffer Logits { float logits[]; };
layout(std430, binding = 1) readonly buffer Wanted { Row rows[]; };
layout(std430, binding = 2) readonly buffer Maxima { uvec2 maxima[]; };
layout(std430, binding = 3) buffer Chosen { uint chosen[]; };

const uint ALL = LANES * LOCAL_Y;
const uint LIST_MAX = 512;
const uint CHUNKS_MAX = 1024;
const uint BINS = 64; // of half a halving each
const uint KEEP_ALL = 0xffffffffu;
const uint FLOAT_MAX_BITS = 0x7f7fffffu;

shared uvec2 exchanged[ALL];
shared uint listed_chunks[CHUNKS_MAX];
shared uint keys[LIST_MAX];
shared uint tokens[LIST_MAX];
shared uint ranks[LIST_MAX];
shared uint weights[LIST_MAX];
shared uint bins_low[BINS];
shared uint bins_high[BINS];
shared uint counter;

#define me gl_LocalInvocationIndex
// Within the workgroup: where the memory model of Vulkan is in use, a wider scope is a feature.
#define add(place, value) \
    atomicAdd(place, value, gl_ScopeWorkgroup, gl_StorageSemanticsNone, gl_SemanticsRelaxed)

void publish(uvec2 value) {
    barrier(); // what was published before has been read
    exchanged[me] = value;
    barrier(); // the values are there
}

uint count_over_all(uint count) {
    publish(uvec2(count, 0));
    uint sum = 0;
    for (uint i = 0; i < ALL; i++) {
        sum += exchanged[i].x;
    }
    return sum;
}

// Key and token of the best logit of the row.
uvec2 best_of_all(uint from) {
    uvec2 best = uvec2(0, NONE);
    for (uint chunk = me; chunk < chunks; chunk += ALL) {
        const uvec2 other = maxima[from + chunk];
        if (other.x > best.x || (other.x == best.x && other.y < best.y)) {
            best = other;
        }
    }
    publish(best);
    for (uint i = 0; i < ALL; i++) {
        const uvec2 other = exchanged[i];
        if (other.x > best.x || (other.x == best.x && other.y < best.y)) {
            best = other;
        }
    }
    return best;
}

// A key that at least `count` chunks reach, and not many more if that can be.
uint key_reached(uint from, uint count, uint best) {
    uint low = 0;
    uint high = best + 1;
    if (chunks <= count) {
        return 0;
    }
    while (high - low > 1) {
        const uint middle = low + (high - low) / 2;
        uint reaching = 0;
        for (uint chunk = me; chunk < chunks; chunk += ALL) {
            reaching += maxima[from + chunk].x >= middle ? 1 : 0;
        }
        reaching = count_over_all(reaching);
        if (reaching < count) {
            high = middle;
        } else {
            low = middle;
            if (reaching <= 2 * count) {
                break;
            }
        }
    }
    return low;
}

// Whether a logit so far from the best is in one of the bins, and in which.
bool find_bin(float distance, out uint bin) {
    precise float exponent = distance * LOG2_E;
    bin = exponent < 31.0 ? uint(exponent * 2.0) : BINS;
    return bin < BINS;
}

// Sums of the weights of all tokens, by bins of their distance from the best.
void fill_bins(uint from, uint vocab, float best) {
    for (uint bin = me; bin < BINS; bin += ALL) {
        bins_low[bin] = 0;
        bins_high[bin] = 0;
    }
    barrier(); // the bins are empty
    for (uint id = me; id < vocab; id += ALL) {
        precise float distance = best - logits[from + id];
        uint bin;
        if (find_bin(distance, bin)) {
            const uint weight = weight_of(distance, LOG2_E);
            const uint before = add(bins_low[bin], weight);
            if (before + weight < before) {
                add(bins_high[bin], 1);
            }
        }
    }
    barrier(); // the bins are full
}

// The weights of all tokens, and the bin within which `part` of them is reached.
uvec2 sum_of_bins(uint part, out uint last) {
    uvec2 total = uvec2(0);
    for (uint bin = 0; bin < BINS; bin++) {
        total = sum_of(total, uvec2(bins_low[bin], bins_high[bin]));
    }
    const uvec2 wanted = part_of(total, part);
    uvec2 reached = uvec2(bins_low[0], bins_high[0]);
    last = 0;
    while (less_than(reached, wanted)) {
        last++;
        reached = sum_of(reached, uvec2(bins_low[last], bins_high[last]));
    }
    return total;
}

// Lists the tokens whose keys reach `least`, whose distance is `distance_max` at most and whose bin
// is no later than `bin_last` (BINS: any); returns how many there are, listed or not.
uint list_tokens(uvec2 from, Row row, float best, uint least, float distance_max, uint bin_last) {
    counter = 0;
    barrier(); // no chunk is listed
    for (uint chunk = me; chunk < chunks; chunk += ALL) {
        const uint key = maxima[from.y + chunk].x;
        precise float distance = best - logit_of(key);
        if (key >= least && key >= KEY_LEAST && distance <= distance_max) {
            listed_chunks[add(counter, 1)] = chunk;
        }
    }
    barrier(); // all chunks are listed
    const uint each = (row.vocab + chunks - 1) / chunks;
    const uint count = counter * each;
    barrier(); // all have read the counter
    counter = 0;
    barrier(); // no token is listed
    for (uint i = me; i < count; i += ALL) {
        const uint id = listed_chunks[i / each] + i % each * chunks;
        if (id < row.vocab) {
            const float logit = logits[from.x + id];
            const uint key = key_of(logit);
            precise float distance = best - logit;
            uint bin = 0;
            const bool binned = bin_last == BINS || (find_bin(distance, bin) && bin <= bin_last);
            if (key >= least && distance <= distance_max && binned) {
                const uint place = add(counter, 1);
                if (place < LIST_MAX) {
                    keys[place] = key;
                    tokens[place] = id;
                }
            }
        }
    }
    barrier(); // all tokens are listed
    return counter;
}

bool is_better(uint i, uint than) {
    return keys[i] > keys[than] || (keys[i] == keys[than] && tokens[i] < tokens[than]);
}

// Sets the weights of listed tokens, without the temperature, to 0 where top-k drops them.
void keep_top_k(uint count, uint top_k, float best) {
    for (uint i = me; i < count; i += ALL) {
        uint rank = 0;
        for (uint other = 0; other < count; other++) {
            rank += is_better(other, i) ? 1 : 0;
        }
        ranks[i] = rank;
        const bool stays = top_k == 0 || rank < top_k;
        precise float distance = best - logit_of(keys[i]);
        weights[i] = stays ? weight_of(distance, LOG2_E) : 0;
    }
    barrier(); // ranks and weights are there
}

uvec2 sum_of_weights(uint count) {
    uvec2 sum = uvec2(0);
    for (uint i = 0; i < count; i++) {
        sum = sum_of(sum, uvec2(weights[i], 0));
    }
    return sum;
}

// Weight of a listed token at the temperature, if it stays.
uint final_weight(uint i, uint count, Row row, float best, uvec2 wanted) {
    precise float distance = best - logit_of(keys[i]);
    bool stays = (row.top_k == 0 || ranks[i] < row.top_k) && distance <= row.distance_max;
    if (stays && row.top_p != KEEP_ALL && ranks[i] > 0) {
        uvec2 better = uvec2(0);
        for (uint other = 0; other < count; other++) {
            better = sum_of(better, uvec2(is_better(other, i) ? weights[other] : 0, 0));
        }
        stays = less_than(better, wanted);
    }
    return stays ? weight_of(distance, row.halvings) : 0;
}

// Draws among the listed tokens; `total` is the sum that top-p takes its part of.
void draw_listed(uint count, Row row, float best, uvec2 total) {
    keep_top_k(count, row.top_k, best);
    if (row.top_k > 0) {
        total = sum_of_weights(count);
    }
    const uvec2 wanted = part_of(total, row.top_p);
    // The list of chunks is done with, and has room for the final weights.
    for (uint i = me; i < count; i += ALL) {
        listed_chunks[i] = final_weight(i, count, row, best, wanted);
    }
    barrier(); // the final weights are there
    uvec2 sum = uvec2(0);
    for (uint i = 0; i < count; i++) {
        sum = sum_of(sum, uvec2(listed_chunks[i], 0));
    }
    const uvec2 target = part_of(sum, row.random);
    for (uint i = me; i < count; i += ALL) {
        uvec2 below = uvec2(0);
        for (uint other = 0; other < count; other++) {
            const bool earlier = tokens[other] < tokens[i];
            below = sum_of(below, uvec2(earlier ? listed_chunks[other] : 0, 0));
        }
        const uvec2 end = sum_of(below, uvec2(listed_chunks[i], 0));
        if (!less_than(target, below) && less_than(target, end)) {
            chosen[gl_WorkGroupID.x] = tokens[i];
        }
    }
}

// Draws among all tokens: each lane adds up neighbouring ones, and the lane that has the target
// among its own looks for it.
void draw_any(uint from, Row row, float best) {
    const uint each = (row.vocab + ALL - 1) / ALL;
    const uint first = min(me * each, row.vocab);
    const uint end = min(first + each, row.vocab);
    uvec2 own = uvec2(0);
    for (uint id = first; id < end; id++) {
        precise float distance = best - logits[from + id];
        own = sum_of(own, uvec2(weight_of(distance, row.halvings), 0));
    }
    publish(own);
    uvec2 total = uvec2(0);
    uvec2 below = uvec2(0);
    for (uint i = 0; i < ALL; i++) {
        below = i == me ? total : below;
        total = sum_of(total, exchanged[i]);
    }
    const uvec2 target = part_of(total, row.random);
    if (less_than(target, below) || !less_than(target, sum_of(below, own))) {
        return; // another lane has it
    }
    uint token = first;
    for (uint id = first; id < end && !less_than(target, below); id++) {
        precise float distance = best - logits[from + id];
        below = sum_of(below, uvec2(weight_of(distance, row.halvings), 0));
        token = id;
    }
    chosen[gl_WorkGroupID.x] = token;
}

void main() {
    const Row row = rows[gl_WorkGroupID.x];
    const uvec2 from = gl_WorkGroupID.x * uvec2(stride, chunks); // of logits, and of maxima
    const uvec2 best = best_of_all(from.y);
    const bool usable = best.x < KEY_INFINITE && best.x > KEY_LEAST;
    if (!usable || row.draws == 0) {
        if (me == 0) {
            chosen[gl_WorkGroupID.x] = usable ? best.y : NONE;
        }
        return;
    }
    const float logit = logit_of(best.x);
    const bool cuts = row.top_p != KEEP_ALL;
    if (row.top_k == 0 && !cuts && floatBitsToUint(row.distance_max) == FLOAT_MAX_BITS) {
        draw_any(from.x, row, logit);
        return;
    }
    uvec2 total = uvec2(0);
    uint bin_last = BINS;
    if (row.top_k == 0 && cuts) {
        fill_bins(from.x, row.vocab, logit);
        total = sum_of_bins(row.top_p, bin_last);
    }
    const uint least = row.top_k == 0 ? 0 : key_reached(from.y, row.top_k, best.x);
    const float distance_max = cuts ? uintBitsToFloat(FLOAT_MAX_BITS) : row.distance_max;
    const uint count = list_tokens(from, row, logit, least, distance_max, bin_last);
    if (count > LIST_MAX) {
        if (me == 0) {
            chosen[gl_WorkGroupID.x] = NONE;
        }
        return;
    }
    draw_listed(count, row, logit, total);
}
