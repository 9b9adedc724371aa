// Tiles: a workgroup makes R groups of LANES rows and TOKENS columns of matmuls. Block after block
// of 32 columns of K, its weights are unpacked into shared memory, with the columns' activations
// beside them; the next block is loaded while one is multiplied.
//
// A column is a token; or with LISTED a route, a token and one of its experts, as in matmul.comp.
// W is then one of several matrices of one shape, and a workgroup takes tiles of the routes in its
// expert's list: the one of its number, and where the list is longer, every so many further ones.
//
// The including shader defines X_QUADS, the quads of a block of x; ROW_QUADS, those that a row's
// block has in shared memory; MATRIX, by which results are kept otherwise than here; put_row and
// multiply.

layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 0) const uint LANES = 8;
layout(constant_id = 1) const uint SPLIT = 1;
layout(constant_id = 2) const uint LOCAL_Z = 1;
layout(constant_id = 3) const uint R = 4;       // groups of a tile; even
layout(constant_id = 4) const uint TOKENS = 16; // columns of a tile
layout(constant_id = 5) const uint LISTED = 0;  // 1: columns are the routes of experts
layout(constant_id = 6) const uint BIAS = 0;    // 1: add bias; not with LISTED
layout(constant_id = 7) const uint EPILOGUE = 0;

layout(push_constant) uniform Params {
    uvec2 addresses[3]; // of matmul.comp's pointers
    uint units;         // units in a row of W
    uint rows;          // rows of y to write
    uint groups;        // groups of LANES rows in a matrix's planes
    uint token_count;   // rows of y
    uint x_stride;      // in quads
    uint y_stride;      // in floats
    uint y_offset;      // in floats
    uint blocks;        // blocks of 32 in a row of W
    float epsilon;
    float y_scale;
    uint expert_first; // with LISTED: of the planes
    uint expert_count;
    uint used;     // neighbouring routes that share a row of x
    uint list_max; // routes that a list has room for
    uint experts;  // of all planes
};
layout(std430, binding = 0) readonly buffer Quads { uvec4 quads[]; };
layout(std430, binding = 1) readonly buffer Words { uint words[]; };
layout(std430, binding = 2) readonly buffer X { uvec4 x[]; };
layout(std430, binding = 3) buffer Y { float y[]; };
layout(std430, binding = 4) readonly buffer Factors { float factors[]; };
layout(std430, binding = 5) readonly buffer Beside { uint beside[]; }; // bias, or lists

#define BIAS_OF(row) uintBitsToFloat(beside[row])
#include "weights.glsl"
#include "epilogue.glsl"

const uint ROWS = R * LANES;
const uint STAGE_QUADS = (ROWS + TOKENS) * ROW_QUADS;
const uint THREADS = LANES * SPLIT;
// What a lane loads of a block: of W, and of x.
const uint OWN_ROWS = (R + SPLIT - 1) / SPLIT;
const uint OWN_QUADS = (TOKENS * X_QUADS + THREADS - 1) / THREADS;

// Two stages: one that is multiplied, one that is filled.
shared uvec4 tile[2 * STAGE_QUADS];

// Of the tile: its first column and the end of all columns, the first group of its matrix, and
// where its list is.
uint column_first;
uint column_end;
uint plane_group;
uint list_first;

// Where a lane's quads of x begin, and its part of the block that is being loaded.
uint own_x_first[OWN_QUADS];
UnitHead own_heads[OWN_ROWS];
Block own_weights[OWN_ROWS];
uvec4 own_x[OWN_QUADS];

// Puts row number `own` of a lane's into the tile from quad `at` on.
void put_row(uint own, uint block, uint at);

// Adds the matmuls of the block in the stage that begins at quad `stage`; before that, sets all
// sums to zero; and after it, writes them.
void multiply(uint stage);
void clear();
void finish();

uint own_quad(uint own) {
    return own * THREADS + gl_LocalInvocationID.y * LANES + gl_LocalInvocationID.x;
}

// The row of y that a column is, and the row of x that one of y is made of.
uint row_of(uint column) { return LISTED == 1 ? beside[list_first + column] : column; }
uint x_row_of(uint row) { return LISTED == 1 ? row / used : row; }

// Looks up the columns of a tile.
void begin() {
    [[unroll]] for (uint own = 0; own < OWN_QUADS; own++) {
        const uint i = own_quad(own);
        const uint column = min(column_first + i / X_QUADS, column_end - 1);
        own_x_first[own] = x_row_of(row_of(column)) * x_stride + i % X_QUADS;
    }
}

void fetch(uint block) {
    const uint unit = block / BLOCKS_PER_UNIT;
    [[unroll]] for (uint own = 0; own < OWN_ROWS; own++) {
        const uint wanted = gl_WorkGroupID.y * R + own * SPLIT + gl_LocalInvocationID.y;
        const uint at = ((plane_group + min(wanted, groups - 1)) * units + unit) * LANES;
        const uint quad_at = at * QUADS + gl_LocalInvocationID.x;
        const uint word_at = at * WORDS + gl_LocalInvocationID.x;
#if QUANTISED
        own_heads[own] = load_unit(quad_at, word_at);
#endif
        own_weights[own] = load_block(quad_at, word_at, block % BLOCKS_PER_UNIT);
    }
    [[unroll]] for (uint own = 0; own < OWN_QUADS; own++) {
        own_x[own] = x[own_x_first[own] + block * X_QUADS];
    }
}

// Puts what was fetched of a block into the stage that begins at quad `stage`.
void put(uint block, uint stage) {
    [[unroll]] for (uint own = 0; own < OWN_ROWS; own++) {
        const uint group = own * SPLIT + gl_LocalInvocationID.y;
        if (group < R) {
            put_row(own, block, stage + (group * LANES + gl_LocalInvocationID.x) * ROW_QUADS);
        }
    }
    [[unroll]] for (uint own = 0; own < OWN_QUADS; own++) {
        const uint i = own_quad(own);
        if (i < TOKENS * X_QUADS) {
            tile[stage + (ROWS + i / X_QUADS) * ROW_QUADS + i % X_QUADS] = own_x[own];
        }
    }
}

// Writes a column of the tile for OWN_GROUPS groups of its rows, from `group` on.
void write_tile(float own[OWN_GROUPS], uint group, uint column) {
    if (column_first + column < column_end) {
        const uint row = row_of(column_first + column);
        write_column(own, gl_WorkGroupID.y * R + group, gl_LocalInvocationID.x,
            factors[x_row_of(row)], row * y_stride + y_offset);
    }
}

#if !MATRIX

// Each lane has R rows and some columns.
const uint COLUMNS = TOKENS / SPLIT;

float sums[R][COLUMNS];

void clear() {
    [[unroll]] for (uint t = 0; t < COLUMNS; t++) {
        [[unroll]] for (uint r = 0; r < R; r++) {
            sums[r][t] = 0.0;
        }
    }
}

// Where the blocks of a lane's row and column are in shared memory.
uint row_at(uint stage, uint r) {
    return stage + (r * LANES + gl_LocalInvocationID.x) * ROW_QUADS;
}
uint column_at(uint stage, uint t) {
    return stage + (ROWS + gl_LocalInvocationID.y * COLUMNS + t) * ROW_QUADS;
}

void finish() {
    [[unroll]] for (uint t = 0; t < COLUMNS; t++) {
        float column[R];
        [[unroll]] for (uint r = 0; r < R; r++) {
            column[r] = sums[r][t];
        }
        write_tile(column, 0, gl_LocalInvocationID.y * COLUMNS + t);
    }
}

#endif

// All matmuls of the tile.
void multiply_all() {
    begin();
    fetch(0);
    put(0, 0);
    barrier(); // the first block is there
    for (uint block = 0; block < blocks; block++) {
        const uint next = block + 1;
        if (next < blocks) {
            fetch(next);
        }
        multiply(block % 2 * STAGE_QUADS);
        if (next < blocks) {
            put(next, next % 2 * STAGE_QUADS);
        }
        barrier(); // the next block is there, and this one has been read
    }
}

// Makes the workgroup's tiles. What a tile has in shared memory has been read by all lanes at its
// end.
void main() {
    column_first = (LISTED == 1 ? gl_WorkGroupID.z : gl_WorkGroupID.x) * TOKENS;
    column_end = token_count;
    plane_group = 0;
    if (LISTED == 1) {
        const uint list = (expert_first + gl_WorkGroupID.x) * (1 + list_max);
        list_first = list + 1;
        column_end = beside[list];
        plane_group = gl_WorkGroupID.x * groups;
        if (column_first >= column_end) {
            return;
        }
    }
    do {
        clear();
        multiply_all();
        finish();
        column_first += gl_NumWorkGroups.z * TOKENS;
    } while (LISTED == 1 && column_first < column_end);
}
