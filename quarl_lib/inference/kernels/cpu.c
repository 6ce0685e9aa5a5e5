/* Which kernels this CPU can run. */
#include <string.h>

#include "kernels.h"

#ifdef __x86_64__
#include <cpuid.h>

static int has_avx2(void) {
    unsigned a, b, c, d;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __get_cpuid(1, &a, &b, &c, &d) &&
           (c >> 29 & 1); /* F16C */
}

static int has_avxvnni(void) {
    unsigned a, b, c, d;
    return has_avx2() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
}

static int has_avx512(void) {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni");
}
#else
static int has_avx2(void) { return 0; }
static int has_avxvnni(void) { return 0; }
static int has_avx512(void) { return 0; }
#endif

const kernels *find_kernels(const char *name, const char **reason) {
    /* Asked once: in a virtual machine cpuid traps to the host, some 10 us each time. */
    static int asked, avx512, avxvnni, avx2;
    if (!asked) {
        avx512 = has_avx512(), avxvnni = has_avxvnni(), avx2 = has_avx2();
        asked = 1;
    }
    const struct {
        const char *name;
        const kernels *table;
        int able;
    } choices[] = {{"avx512", avx512_kernels, avx512},
                   {"avxvnni", avxvnni_kernels, avxvnni},
                   {"avx2", avx2_kernels, avx2},
                   {"portable", &portable_kernels, 1}};
    int any = !name || !*name || !strcmp(name, "auto"), vnni = name && !strcmp(name, "vnni");
    *reason = "is unknown: choose auto, avx512, avxvnni, vnni (the wider of the two), avx2 or portable";
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++) {
        int meant = any || !strcmp(name, choices[i].name) || (vnni && i < 2);
        if (meant && choices[i].table && choices[i].able) return choices[i].table;
        if (meant) *reason = choices[i].table ? "needs instructions that this CPU lacks" : "was not compiled";
    }
    return NULL;
}
