/* The float kernels of an instruction set, by the number of row blocks; included behind its `float_of`.
   FLOAT_VECTORS: registers in a block. FLOAT_UNROLL_n: columns at a time for n blocks, as many as the registers hold. */
#define FLOAT_OF(n, bytes)                                                                                       \
    float_of(weights, next, columns, x, count, sums, n * FLOAT_VECTORS, FLOAT_UNROLL_##n, bytes)
#define FLOAT_BY_BLOCKS(bytes)                                                                                   \
    switch (blocks) {                                                                                            \
    case 4: FLOAT_OF(4, bytes); break;                                                                           \
    case 3: FLOAT_OF(3, bytes); break;                                                                           \
    case 2: FLOAT_OF(2, bytes); break;                                                                           \
    default: FLOAT_OF(1, bytes);                                                                                 \
    }

static void fp32(const uint8_t *weights, const uint8_t *next, const uint16_t *columns, const float *x, ptrdiff_t count,
                 int blocks, float *sums) {
    FLOAT_BY_BLOCKS(4)
}

static void fp16(const uint8_t *weights, const uint8_t *next, const uint16_t *columns, const float *x, ptrdiff_t count,
                 int blocks, float *sums) {
    FLOAT_BY_BLOCKS(2)
}
