// moe_combine: y[t] (+)= factor * (sum_i weights[t, i] * x[t, i] + gate[t] * shared_x[t]): what the
// experts of each token make together, in the order of the routes.
//
// Dispatch   (tokens, parts, 1); local size (LANES, 1, 1): the parts of a token share its row
// Binding 0  x         readonly  f32 [tokens, used, dim]: the experts' results
// Binding 1  weights   readonly  f32 [tokens, used]
// Binding 2  shared_x  readonly  f32 [tokens, dim], with SHARED: of the expert that all tokens use
// Binding 3  gate      readonly  f32 [tokens]: the logit of its weight, with SHARED = 2
// Binding 4  y         f32 [tokens, dim]; read only with RESIDUAL
// Needs      dim a multiple of 4
// Numerics   f32; within 1e-6 of the twin, relative to sum |weights x|
#version 460

layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 0) const uint LANES = 8;
layout(constant_id = 1) const uint LOCAL_Y = 1;
layout(constant_id = 2) const uint LOCAL_Z = 1;
layout(constant_id = 3) const uint SHARED = 0;   // 1: add shared_x as it is; 2: by sigmoid(gate)
layout(constant_id = 4) const uint RESIDUAL = 0; // 1: add to y

layout(push_constant) uniform Params {
    uint dim; // in vec4
    uint used;
    float factor;
};
layout(std430, binding = 0) readonly buffer X { vec4 x[]; };
layout(std430, binding = 1) readonly buffer Weights { float weights[]; };
layout(std430, binding = 2) readonly buffer SharedX { vec4 shared_x[]; };
layout(std430, binding = 3) readonly buffer Gate { float gate[]; };
layout(std430, binding = 4) buffer Y { vec4 y[]; };

void main() {
    const uint token = gl_WorkGroupID.x;
    const uint stride = LANES * gl_NumWorkGroups.y;
    const float share = SHARED == 2 ? 1.0 / (1.0 + exp(-gate[token])) : 1.0;
    for (uint i = gl_WorkGroupID.y * LANES + gl_LocalInvocationID.x; i < dim; i += stride) {
        vec4 sum = vec4(0.0);
        for (uint route = token * used; route < (token + 1) * used; route++) {
            sum += weights[route] * x[route * dim + i];
        }
        if (SHARED > 0) {
            sum += share * shared_x[token * dim + i];
        }
        sum *= factor;
        y[token * dim + i] = RESIDUAL == 1 ? y[token * dim + i] + sum : sum;
    }
}
