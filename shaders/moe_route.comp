// moe_route: the experts of each token, best first, and their weights, from the router's logits.
//
// score = softmax or sigmoid of the logits; the USED experts with the largest logits are chosen, of
// equal ones that with the lower number; with NORMALISE their weights are divided by their sum.
//
// Dispatch   (tokens, 1, 1); local size (LANES, 1, 1): a lane ranks every LANES-th expert
// Binding 0  logits   readonly  f32 [tokens, EXPERTS]
// Binding 1  experts  u32 [tokens, USED]
// Binding 2  weights  f32 [tokens, USED]
// Needs      USED <= EXPERTS; shared memory USED * 4 bytes
// Numerics   f32; within 1e-6 of the twin, relative. Logits that are not numbers choose some
//            experts too, no two alike: what follows may index by them.
#version 460

layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 0) const uint LANES = 8;
layout(constant_id = 1) const uint LOCAL_Y = 1;
layout(constant_id = 2) const uint LOCAL_Z = 1;
layout(constant_id = 3) const uint EXPERTS = 8;
layout(constant_id = 4) const uint USED = 2;
layout(constant_id = 5) const uint SIGMOID = 0;   // 1: sigmoid rather than softmax
layout(constant_id = 6) const uint NORMALISE = 0; // 1: weights of a token sum to 1, before `scale`

layout(push_constant) uniform Params {
    float scale; // of every weight
};
layout(std430, binding = 0) readonly buffer Logits { float logits[]; };
layout(std430, binding = 1) buffer Experts { uint experts[]; };
layout(std430, binding = 2) buffer Weights { float weights[]; };

// The smallest sum that weights are divided by: f16's smallest normal number, as elsewhere.
const float SUM_MIN = 6.103515625e-5;

shared float chosen[USED];

// Bits that order as the values do, NaN included: a total order leaves no two ranks alike.
uint order_of(float value) {
    uint bits = floatBitsToUint(value);
    return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

void main() {
    const uint lane = gl_LocalInvocationID.x;
    const uint from = gl_WorkGroupID.x * EXPERTS;
    const uint to = gl_WorkGroupID.x * USED;
    float largest = logits[from];
    for (uint e = 1; e < EXPERTS; e++) {
        largest = max(largest, logits[from + e]);
    }
    // Every lane adds up all, in one order.
    float total = 0.0;
    if (SIGMOID == 0) {
        for (uint e = 0; e < EXPERTS; e++) {
            total += exp(logits[from + e] - largest);
        }
    }
    for (uint e = lane; e < EXPERTS; e += LANES) {
        const float logit = logits[from + e];
        const uint order = order_of(logit);
        uint rank = 0;
        for (uint other = 0; other < EXPERTS; other++) {
            const uint theirs = order_of(logits[from + other]);
            rank += theirs > order || (theirs == order && other < e) ? 1 : 0;
        }
        if (rank < USED) {
            experts[to + rank] = e;
            chosen[rank] =
                SIGMOID == 1 ? 1.0 / (1.0 + exp(-logit)) : exp(logit - largest) / total;
        }
    }
    barrier(); // the chosen weights of all lanes are there
    float sum = 1.0;
    if (NORMALISE == 1) {
        sum = 0.0;
        for (uint i = 0; i < USED; i++) {
            sum += chosen[i];
        }
        sum = max(sum, SUM_MIN);
    }
    for (uint i = lane; i < USED; i += LANES) {
        weights[to + i] = chosen[i] / sum * scale;
    }
}
