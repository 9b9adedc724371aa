// f16, rounded to nearest even on every driver: packHalf2x16 may round as it likes (lavapipe cuts
// off), but has nothing left to round in a value that f16 can hold.

// v as the nearest f16; past its range the largest one.
float round_to_half(float v) {
    precise float tiny = (abs(v) + 0.5) - 0.5; // a multiple of 2^-24, the step of small f16
    uint bits = floatBitsToUint(v);
    bits += 0xfffu + ((bits >> 13) & 1u);
    float normal = uintBitsToFloat(bits & 0xffffe000u);
    return abs(v) < 6.103515625e-5 ? (v < 0.0 ? -tiny : tiny) : clamp(normal, -65504.0, 65504.0);
}

// By the bits, as drivers may take every float for a number.
bool is_finite(float v) { return (floatBitsToUint(v) & 0x7f800000u) != 0x7f800000u; }

// Both, NaN where a value is not finite: a number in its place would pass for a result.
uint pack_half(vec2 v) {
    uint word = packHalf2x16(vec2(round_to_half(v.x), round_to_half(v.y)));
    word = is_finite(v.x) ? word : (word & 0xffff0000u) | 0x7e00u;
    return is_finite(v.y) ? word : (word & 0xffffu) | 0x7e000000u;
}
