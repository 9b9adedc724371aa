// What becomes of a column's matmuls with R groups of LANES rows of W.
//
// The including shader defines LANES, R, BIAS, EPILOGUE, `rows` (of y to write), `y_scale`, y and
// bias, or what BIAS_OF(row) is; without a bias at all, NO_BIAS; where it has other than R groups
// at a time, OWN_GROUPS.
#include "activation.glsl"

#ifndef BIAS_OF
#define BIAS_OF(row) bias[row]
#endif
#ifndef OWN_GROUPS
#define OWN_GROUPS R
#endif

const uint EPILOGUE_STORE = 0;    // y = y_scale * v
const uint EPILOGUE_RESIDUAL = 1; // y += y_scale * v
const uint EPILOGUE_SWIGLU = 2;   // groups alternate gate, up: y = silu(gate) * up
const uint EPILOGUE_GEGLU = 3;    // the same with GELU's tanh form
const uint EPILOGUE_GELU = 4;     // y = gelu(v), the tanh form
const uint EPILOGUE_SOFT_CAP = 5; // y = y_scale * tanh(v / y_scale)

// Writes the rows of groups `group_first` on to y from `y_row` on; `sums` are of this lane's rows.
void write_column(float sums[OWN_GROUPS], uint group_first, uint lane, float factor, uint y_row) {
    if (EPILOGUE == EPILOGUE_SWIGLU || EPILOGUE == EPILOGUE_GEGLU) {
        [[unroll]] for (uint r = 0; r < OWN_GROUPS; r += 2) {
            const uint row = (group_first + r) / 2 * LANES + lane;
            if (row < rows) {
                const float gate = sums[r] * factor;
                const float up = sums[r + 1] * factor;
                y[y_row + row] = (EPILOGUE == EPILOGUE_SWIGLU ? silu(gate) : gelu(gate)) * up;
            }
        }
        return;
    }
    [[unroll]] for (uint r = 0; r < OWN_GROUPS; r++) {
        const uint row = (group_first + r) * LANES + lane;
        if (row < rows) {
            float v = sums[r] * factor;
#ifndef NO_BIAS
            if (BIAS == 1) {
                v += BIAS_OF(row);
            }
#endif
            if (EPILOGUE == EPILOGUE_GELU) {
                v = gelu(v);
            } else if (EPILOGUE == EPILOGUE_SOFT_CAP) {
                v = soft_cap(v, y_scale);
            } else {
                v *= y_scale;
            }
            if (EPILOGUE == EPILOGUE_RESIDUAL) {
                v += y[y_row + row];
            }
            y[y_row + row] = v;
        }
    }
}
