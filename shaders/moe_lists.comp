// moe_lists: the routes of each expert, in ascending order, so that its weights can be read once
// for many of them.
//
// Dispatch   (experts, 1, 1); local size (LANES, 1, 1): each lane looks at neighbouring routes
// Binding 0  experts  readonly  u32 [routes]: the expert of each
// Binding 1  lists    u32 [experts, 1 + list_max]: how many routes, then which
// Needs      list_max not below the routes of any expert; shared memory LANES * 4 bytes
// Numerics   exact
#version 460

layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 0) const uint LANES = 8;
layout(constant_id = 1) const uint LOCAL_Y = 1;
layout(constant_id = 2) const uint LOCAL_Z = 1;

layout(push_constant) uniform Params {
    uint routes;
    uint list_max;
};
layout(std430, binding = 0) readonly buffer Experts { uint experts[]; };
layout(std430, binding = 1) buffer Lists { uint lists[]; };

shared uint counts[LANES];

void main() {
    const uint lane = gl_LocalInvocationID.x;
    const uint expert = gl_WorkGroupID.x;
    const uint each = (routes + LANES - 1) / LANES;
    const uint first = min(lane * each, routes);
    const uint end = min(first + each, routes);
    uint count = 0;
    for (uint route = first; route < end; route++) {
        count += experts[route] == expert ? 1 : 0;
    }
    counts[lane] = count;
    barrier(); // the counts of all lanes are there
    uint before = 0;
    for (uint other = 0; other < lane; other++) {
        before += counts[other];
    }
    const uint list = expert * (1 + list_max);
    uint at = list + 1 + before;
    for (uint route = first; route < end; route++) {
        if (experts[route] == expert) {
            lists[at] = route;
            at++;
        }
    }
    if (lane == LANES - 1) {
        lists[list] = before + count;
    }
}
