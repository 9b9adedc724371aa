// Weight formats: their numbers, and the sizes of their units (src/tensor/layout).
#ifndef FORMATS_GLSL
#define FORMATS_GLSL

#define F32 0
#define F16 1
#define BF16 2
#define Q8_0 3
#define Q4_0 4
#define Q4_1 5
#define Q5_0 6
#define Q5_1 7
#define Q4_K 8
#define Q5_K 9
#define Q6_K 10
#define Q2_K 11
#define Q3_K 12
#define IQ4_NL 13
#define IQ4_XS 14
#define MXFP4 15
#define TQ1_0 16
#define TQ2_0 17
#define IQ1_S 18
#define IQ1_M 19
#define IQ2_XXS 20
#define IQ2_XS 21
#define IQ2_S 22
#define IQ3_XXS 23
#define IQ3_S 24

// What a block's codes are: bytes, nibbles or bit pairs, whose plane begins at quad CODES_AT.
#define FLOATS 0
#define BYTES 1
#define NIBBLES 2
#define PAIRS 3

#if FORMAT == F32
#define UNIT 32
#define QUADS 8
#define WORDS 0
#define CODES FLOATS
#elif FORMAT == F16 || FORMAT == BF16
#define UNIT 32
#define QUADS 4
#define WORDS 0
#define CODES FLOATS
#elif FORMAT == Q8_0
#define UNIT 64
#define QUADS 4
#define WORDS 1
#define CODES BYTES
#elif FORMAT == Q4_0 || FORMAT == IQ4_NL
#define UNIT 64
#define QUADS 2
#define WORDS 1
#define CODES NIBBLES
#define CODES_AT 0
#elif FORMAT == Q4_1
#define UNIT 32
#define QUADS 1
#define WORDS 1
#define CODES NIBBLES
#define CODES_AT 0
#elif FORMAT == Q5_0 || FORMAT == MXFP4
#define UNIT 64
#define QUADS 2
#define WORDS 3
#define CODES NIBBLES
#define CODES_AT 0
#elif FORMAT == Q5_1
#define UNIT 32
#define QUADS 1
#define WORDS 2
#define CODES NIBBLES
#define CODES_AT 0
#elif FORMAT == Q4_K
#define UNIT 256
#define QUADS 9
#define WORDS 0
#define CODES NIBBLES
#define CODES_AT 1
#elif FORMAT == Q5_K
#define UNIT 256
#define QUADS 11
#define WORDS 0
#define CODES NIBBLES
#define CODES_AT (2 + (sub >> 2)) // each four blocks' fifth bits stand before their nibbles
#elif FORMAT == Q6_K
#define UNIT 256
#define QUADS 13
#define WORDS 1
#define CODES NIBBLES
#define CODES_AT (2 + (sub >> 1)) // each two blocks' bit pairs stand before their nibbles
#elif FORMAT == Q2_K
#define UNIT 256
#define QUADS 5
#define WORDS 1
#define CODES PAIRS
#define CODES_AT 1
#elif FORMAT == Q3_K
#define UNIT 256
#define QUADS 7
#define WORDS 1
#define CODES PAIRS
#define CODES_AT 3
#elif FORMAT == IQ4_XS || FORMAT == IQ3_XXS || FORMAT == IQ3_S
#define UNIT 256
#define QUADS 8
#define WORDS 2
#define CODES NIBBLES
#define CODES_AT 0
#elif FORMAT == TQ1_0 || FORMAT == TQ2_0
#define UNIT 256
#define QUADS 4
#define WORDS 1
#define CODES PAIRS
#define CODES_AT 0
#elif FORMAT == IQ1_S
#define UNIT 256
#define QUADS 4
#define WORDS 2
#define CODES PAIRS
#define CODES_AT 0
#elif FORMAT == IQ1_M
#define UNIT 256
#define QUADS 5
#define WORDS 0
#define CODES PAIRS
#define CODES_AT 1
#elif FORMAT == IQ2_XXS
#define UNIT 256
#define QUADS 6
#define WORDS 2
#define CODES PAIRS
#define CODES_AT 2
#elif FORMAT == IQ2_XS || FORMAT == IQ2_S
#define UNIT 256
#define QUADS 6
#define WORDS 3
#define CODES PAIRS
#define CODES_AT 2
#else
#error "unknown FORMAT"
#endif

#endif
