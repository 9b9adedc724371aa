// read_stream: the exclusive or of all quads of a buffer, to measure what reading alone costs.
//
// A workgroup takes `part` neighbouring quads, its lanes neighbouring ones of these.
//
// Dispatch   (workgroups, 1, 1); local size (LANES, 1, 1)
// Binding 0  x  readonly  u32 [quads, 4]
// Binding 1  y  u32 [workgroups, LANES]; written only
// Needs      buffer addresses with POINTERS=1
// Numerics   exact
//
// Variant read_stream: POINTERS=0
// Variant read_stream_pointers: POINTERS=1
#version 460
#extension GL_EXT_control_flow_attributes : require
#if POINTERS
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require
#endif

layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 0) const uint LANES = 8;
layout(constant_id = 1) const uint LOCAL_Y = 1;
layout(constant_id = 2) const uint LOCAL_Z = 1;

layout(push_constant) uniform Params {
    uvec2 x_address; // with POINTERS
    uint part;       // quads of a workgroup, a multiple of UNROLL * LANES
};
layout(std430, binding = 0) readonly buffer X { uvec4 bound_quads[]; };
layout(std430, binding = 1) writeonly buffer Y { uint y[]; };

#if POINTERS
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Quads { uvec4 at[]; };
#define quads Quads(x_address).at
#else
#define quads bound_quads
#endif

// Loads in flight in each lane.
const uint UNROLL = 4;

void main() {
    const uint lane = gl_LocalInvocationID.x;
    const uint first = gl_WorkGroupID.x * part + lane;
    uvec4 seen[UNROLL];
    [[unroll]] for (uint i = 0; i < UNROLL; i++) {
        seen[i] = uvec4(0);
    }
    for (uint at = 0; at < part; at += UNROLL * LANES) {
        [[unroll]] for (uint i = 0; i < UNROLL; i++) {
            seen[i] ^= quads[first + at + i * LANES];
        }
    }
    uvec4 all = uvec4(0);
    [[unroll]] for (uint i = 0; i < UNROLL; i++) {
        all ^= seen[i];
    }
    y[gl_WorkGroupID.x * LANES + lane] = (all.x ^ all.y) ^ (all.z ^ all.w);
}
