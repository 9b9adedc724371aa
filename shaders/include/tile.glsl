// Tiles: a workgroup makes R groups of LANES rows and TOKENS columns of products. Block after block
// of 32 columns of K, its weights are unpacked into shared memory, with the columns' activations
// beside them; the next block is loaded while one is multiplied.
//
// The including shader defines LANES, SPLIT, R, TOKENS and what include/epilogue.glsl asks for; x,
// of which a block is X_QUADS quads; ROW_QUADS, the quads that a row's block has in shared memory;
// MATRIX, by which results are kept otherwise than here; put_row and multiply.

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

// A lane's part of the block that is being loaded.
UnitHead own_heads[OWN_ROWS];
Block own_weights[OWN_ROWS];
uvec4 own_x[OWN_QUADS];

// Puts row number `own` of a lane's into the tile from quad `at` on.
void put_row(uint own, uint block, uint at);

// Adds the products of the block in the stage that begins at quad `stage`.
void multiply(uint stage);

uint own_quad(uint own) {
    return own * THREADS + gl_LocalInvocationID.y * LANES + gl_LocalInvocationID.x;
}

void fetch(uint block) {
    const uint unit = block / BLOCKS_PER_UNIT;
    [[unroll]] for (uint own = 0; own < OWN_ROWS; own++) {
        const uint wanted = gl_WorkGroupID.y * R + own * SPLIT + gl_LocalInvocationID.y;
        const uint at = (min(wanted, groups - 1) * units + unit) * LANES;
        const uint quad_at = at * QUADS + gl_LocalInvocationID.x;
        const uint word_at = at * WORDS + gl_LocalInvocationID.x;
#if QUANTISED
        own_heads[own] = load_unit(quad_at, word_at);
#endif
        own_weights[own] = load_block(quad_at, word_at, block % BLOCKS_PER_UNIT);
    }
    [[unroll]] for (uint own = 0; own < OWN_QUADS; own++) {
        const uint i = own_quad(own);
        const uint token = min(gl_WorkGroupID.x * TOKENS + i / X_QUADS, token_count - 1);
        own_x[own] = x[token * x_stride + block * X_QUADS + i % X_QUADS];
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
    const uint token = gl_WorkGroupID.x * TOKENS + column;
    if (token < token_count) {
        write_column(own, gl_WorkGroupID.y * R + group, gl_LocalInvocationID.x, factors[token],
            token * y_stride + y_offset);
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

// All products of the tile.
void multiply_all() {
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
