// Sums over a block of 32 values, by its eight vec4: trees over their numbers.

float squares_of(vec4 v) {
    return (v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w);
}

vec2 add_up_halves(float v[8]) {
    return vec2((v[0] + v[1]) + (v[2] + v[3]), (v[4] + v[5]) + (v[6] + v[7]));
}

float add_up(float v[8]) {
    const vec2 halves = add_up_halves(v);
    return halves.x + halves.y;
}
