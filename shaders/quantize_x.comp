// quantize_x: rows of x * g in f16 or bytes, a step of their own before matmuls that multiply such.
//
// In f16, a row is multiplied by the power of two that brings its largest value to 8 .. 16:
// matmuls with weights then stay far from both ends of f16, however large or small a model's
// activations are. What the matmuls have to be multiplied by in turn, that of an RMS norm
// included, stands apart. As BYTES, each block of 32 is three quads: 32 signed bytes, of which the
// largest is 127; and as floats the block's scale, the sums of its first and second 16 values so
// rounded, and 0.
//
// Dispatch   (rows, 1, 1); local size (LANES, SPLIT, 1)
// Binding 0  x        readonly  f32 [rows, x_stride]
// Binding 1  gain     readonly  f32 [K], with NORM
// Binding 2  quantized quads [rows, K / 8], or with BYTES [rows, K / 32 * 3]
// Binding 3  factors  f32 [rows]
// Needs      subgroup shuffle; shared memory SPLIT * 8 bytes
// Numerics   f32, rounded to the nearest f16 or byte: the twin's bits, where a driver divides by
//            the book; factors within 1e-6
//
// Variant quantize_x_f16: SUBGROUPS=1 BYTES=0
// Variant quantize_x_int8: SUBGROUPS=1 BYTES=1
#version 460
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require

layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 0) const uint LANES = 8;
layout(constant_id = 1) const uint SPLIT = 1;
layout(constant_id = 2) const uint LOCAL_Z = 1;
layout(constant_id = 3) const uint NORM = 0; // 1: RMS-normalise x and multiply by gain

layout(push_constant) uniform Params {
    uint x_stride; // in vec4
    uint blocks;   // blocks of 32 in a row
    float epsilon; // with NORM
};
layout(std430, binding = 0) readonly buffer X { vec4 x[]; };
layout(std430, binding = 1) readonly buffer Gain { vec4 gain[]; };
layout(std430, binding = 2) writeonly buffer Quantized { uvec4 quantized[]; };
layout(std430, binding = 3) writeonly buffer Factors { float factors[]; };

#define ROWS_Y SPLIT
#define LANE_SLOTS 1
#include "half.glsl"
#include "lanes.glsl"

shared vec2 partials[SPLIT];

// Bits of the exponent of the power of two that brings a positive v to 8 .. 16, as far as there is
// one: its inverse is a power of two too.
uint exponent_to_sixteen(float v) { return clamp(257 - (floatBitsToUint(v) >> 23), 1, 253); }

vec4 value(uint row, uint i) {
    const vec4 v = x[row * x_stride + i];
    return NORM == 1 ? v * gain[i] : v;
}

float largest_of(vec4 v) {
    const vec4 size = abs(v);
    return max(max(size.x, size.y), max(size.z, size.w));
}

#if BYTES
// Below it a block is nothing: the inverse of its scale would be no number.
const float LEAST = 1e-30;

void put_block(uint row, uint block) {
    vec4 v[8];
    float largest = 0.0;
    [[unroll]] for (uint i = 0; i < 8; i++) {
        v[i] = value(row, block * 8 + i);
        largest = max(largest, largest_of(v[i]));
    }
    const float inverse = largest < LEAST ? 0.0 : 127.0 / largest;
    uvec4 quads[2];
    int sums[2];
    [[unroll]] for (uint half_block = 0; half_block < 2; half_block++) {
        sums[half_block] = 0;
        [[unroll]] for (uint i = 0; i < 4; i++) {
            const ivec4 q = ivec4(roundEven(v[half_block * 4 + i] * inverse));
            const uvec4 byte = uvec4(q) & 255;
            quads[half_block][i] = byte.x | byte.y << 8 | byte.z << 16 | byte.w << 24;
            sums[half_block] += (q.x + q.y) + (q.z + q.w);
        }
    }
    const float scale = largest / 127.0;
    const uint at = (row * blocks + block) * 3;
    quantized[at] = quads[0];
    quantized[at + 1] = quads[1];
    quantized[at + 2] =
        floatBitsToUint(vec4(scale, scale * float(sums[0]), scale * float(sums[1]), 0.0));
}
#endif

void main() {
    const uint row = gl_WorkGroupID.x;
    const uint first = gl_LocalInvocationID.y * LANES + gl_LocalInvocationID.x;
    float squares = 0.0;
    float largest = 0.0;
    for (uint i = first; i < blocks * 8; i += SPLIT * LANES) {
        if (NORM == 1) {
            const vec4 v = x[row * x_stride + i];
            squares += (v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w);
        }
        largest = max(largest, largest_of(value(row, i)));
    }
    squares = lanes_sum(squares, LANES);
    largest = lanes_max(largest);
    if (SPLIT > 1) {
        partials[gl_LocalInvocationID.y] = vec2(squares, largest);
        barrier(); // the partial results of all rows of lanes are there
        squares = 0.0;
        [[unroll]] for (uint slice = 0; slice < SPLIT; slice++) {
            squares += partials[slice].x;
            largest = max(largest, partials[slice].y);
        }
    }
#if BYTES
    const float unscale = 1.0;
    for (uint i = first; i < blocks; i += SPLIT * LANES) {
        put_block(row, i);
    }
#else
    const uint exponent = exponent_to_sixteen(largest);
    const float scale = uintBitsToFloat(exponent << 23);
    const float unscale = uintBitsToFloat((254 - exponent) << 23);
    for (uint i = first; i < blocks * 4; i += SPLIT * LANES) {
        const vec4 a = value(row, 2 * i) * scale;
        const vec4 b = value(row, 2 * i + 1) * scale;
        quantized[row * blocks * 4 + i] =
            uvec4(pack_half(a.xy), pack_half(a.zw), pack_half(b.xy), pack_half(b.zw));
    }
#endif
    if (first == 0) {
        const float norm =
            NORM == 1 ? inversesqrt(squares / float(blocks * 32) + epsilon) : 1.0;
        factors[row] = norm * unscale;
    }
}
