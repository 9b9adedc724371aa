// gather_rows: y[i] = x[rows[i]].
//
// Dispatch   (rows, 1, 1); local size (LANES, 1, 1)
// Binding 0  x     readonly  f32 [tokens, dim]
// Binding 1  rows  readonly  u32 [rows]
// Binding 2  y     f32 [rows, dim]
// Needs      dim a multiple of 4
// Numerics   exact
#version 460

layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 0) const uint LANES = 8;
layout(constant_id = 1) const uint LOCAL_Y = 1;
layout(constant_id = 2) const uint LOCAL_Z = 1;

layout(push_constant) uniform Params {
    uint dim; // in vec4
};
layout(std430, binding = 0) readonly buffer X { vec4 x[]; };
layout(std430, binding = 1) readonly buffer Rows { uint rows[]; };
layout(std430, binding = 2) buffer Y { vec4 y[]; };

void main() {
    const uint from = rows[gl_WorkGroupID.x] * dim;
    const uint to = gl_WorkGroupID.x * dim;
    for (uint i = gl_LocalInvocationID.x; i < dim; i += LANES) {
        y[to + i] = x[from + i];
    }
}
