// Activation functions of feed-forward layers.

float silu(float v) { return v / (1.0 + exp(-v)); }

// GELU in its tanh form. tanh by way of exp: some drivers' own overflows to NaN.
float gelu(float v) {
    float inner = 0.79788456080286536 * v * (1.0 + 0.044715 * v * v);
    float e = exp(-2.0 * abs(inner));
    float t = (1.0 - e) / (1.0 + e);
    return 0.5 * v * (1.0 + (inner < 0.0 ? -t : t));
}
