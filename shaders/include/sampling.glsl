// Sampling: choosing a token from a row of logits in whole numbers, so that every device and the
// host choose alike. src/kernels/sampling.rs describes it and is the other end.

struct Row {
    uint vocab;           // tokens to choose from
    uint draws;           // 0: the best
    uint top_k;           // 0 keeps all
    uint top_p;           // part of all weights, in 2^-32; 0xffffffff keeps all
    float distance_max;   // from the best logit
    float halvings;       // of the weight for each unit of distance
    uint random;          // where to draw, in 2^-32
    uint penalties;       // tokens in the row's list
    uint penalties_at;    // where that begins
    uint penalty_pending; // row of the step before, or NONE
    float penalty;        // factor of penalised logits up to 0
    float relief;         // factor of those above 0
    float frequency;      // taken off them then, for each time that the token is there
    float presence;       // taken off besides, once
    uint mask;            // place of the row's mask, or NONE
};

struct Penalty {
    uint token;
    uint count;   // how often it was generated
    uint repeats; // 1: it is in the window of the repetition penalty
    float bias;   // added first
};

const uint NONE = 0xffffffffu;
const uint KEY_INFINITE = 0xff800000u;
const uint KEY_LEAST = 0x007fffffu;
const float LOG2_E = 1.44269504088896340736;

// Bits that order as logits do; 0 and -0 are one.
uint key_of(float logit) {
    uint bits = floatBitsToUint(logit);
    bits = bits == 0x80000000u ? 0 : bits;
    return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

float logit_of(uint key) {
    return uintBitsToFloat((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key);
}

// 2^30 times 2^-(distance * halvings).
uint weight_of(float distance, float halvings) {
    precise float exponent = distance * halvings;
    if (!(exponent < 31.0)) {
        return 0;
    }
    const uint fixed_point = uint(exponent * 65536.0);
    const uint f = fixed_point & 0xffffu;
    uint p = 3490u - (f * 448u >> 16);
    p = 15698u - (f * p >> 16);
    p = 45424u - (f * p >> 16);
    p = 65536u - (f * p >> 16);
    return p << 14 >> (fixed_point >> 16);
}

// Sums of weights have 48 bits: the lower 32, then the others.
uvec2 sum_of(uvec2 sum, uvec2 more) {
    const uint low = sum.x + more.x;
    return uvec2(low, sum.y + more.y + (low < sum.x ? 1 : 0));
}

bool less_than(uvec2 a, uvec2 b) { return a.y < b.y || (a.y == b.y && a.x < b.x); }

// `part` of `sum`, in 2^-32.
uvec2 part_of(uvec2 sum, uint part) {
    uint high, low, unused;
    umulExtended(sum.y, part, high, low);
    uint carried;
    umulExtended(sum.x, part, carried, unused);
    return sum_of(uvec2(low, high), uvec2(carried, 0));
}
