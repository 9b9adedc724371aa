// Activation functions of feed-forward layers.

float silu(float v) { return v / (1.0 + exp(-v)); }

// tanh by way of exp: some drivers' own overflows to NaN.
float tanh_by_exp(float v) {
    float e = exp(-2.0 * abs(v));
    float t = (1.0 - e) / (1.0 + e);
    return v < 0.0 ? -t : t;
}

// GELU in its tanh form.
float gelu(float v) {
    return 0.5 * v * (1.0 + tanh_by_exp(0.79788456080286536 * v * (1.0 + 0.044715 * v * v)));
}

// A value that never passes `cap`, and hardly differs from `v` far below it.
float soft_cap(float v, float cap) { return cap * tanh_by_exp(v / cap); }
