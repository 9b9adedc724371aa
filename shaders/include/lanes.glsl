// Lanes: handing values between the LANES invocations of a workgroup's row, by subgroup operations
// or, in the variants without them (SUBGROUPS=0), through shared memory.
//
// The including shader defines LANES, ROWS_Y (invocations in y: each row of lanes works by itself)
// and LANE_SLOTS (how many values a lane can publish at once).

#if SUBGROUPS
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_ballot : require
#extension GL_KHR_shader_subgroup_shuffle : require
#else
shared vec4 lane_values[ROWS_Y * LANE_SLOTS * LANES];
shared float lane_exchanged[ROWS_Y * LANES];
#endif

// The `value` of the lane whose number differs from this one's in the bits of `mask`.
float lanes_exchange(float value, uint mask) {
#if SUBGROUPS
    return subgroupShuffleXor(value, mask);
#else
    uint at = gl_LocalInvocationID.y * LANES;
    barrier(); // the values exchanged before have been read
    lane_exchanged[at + gl_LocalInvocationID.x] = value;
    barrier(); // the values of this exchange are there
    return lane_exchanged[at + (gl_LocalInvocationID.x ^ mask)];
#endif
}

// Sum of `value` over the lanes whose numbers differ in the bits below `width` (a power of two), in
// the fixed order of a butterfly: the same for every lane.
float lanes_sum(float value, uint width) {
    for (uint mask = 1; mask < width; mask <<= 1) {
        value += lanes_exchange(value, mask);
    }
    return value;
}

// Largest `value` over all lanes.
float lanes_max(float value) {
    for (uint mask = 1; mask < LANES; mask <<= 1) {
        value = max(value, lanes_exchange(value, mask));
    }
    return value;
}

// Publishing: all lanes call lanes_begin, then lanes_put for each slot, then lanes_ready; lanes_get
// then gives the value that `lane` put in `slot`. With subgroups the value itself is handed in.
#if SUBGROUPS
#define lanes_begin()
#define lanes_put(slot, value)
#define lanes_ready()
#define lanes_get(slot, lane, value) subgroupBroadcast(value, lane)
#else
#define lanes_begin() barrier() // the values published before have been read
#define lane_place(slot, lane) ((gl_LocalInvocationID.y * LANE_SLOTS + (slot)) * LANES + (lane))
#define lanes_put(slot, value) lane_values[lane_place(slot, gl_LocalInvocationID.x)] = value
#define lanes_ready() barrier() // the values are there
#define lanes_get(slot, lane, value) lane_values[lane_place(slot, lane)]
#endif
