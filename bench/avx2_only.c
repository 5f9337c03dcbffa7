/* A library that hides AVX-512 and AMX from the process that preloads it, and from all that this one starts: programs
 * ask the CPU what it has by the instruction `cpuid`. Linux can make it fault (arch_prctl(2), Intel CPUs only); the
 * handler below then answers, with the bits of AVX-512 and AMX cleared. `python -m bench.avx2_only` uses it. */
#define _GNU_SOURCE
#include <cpuid.h>
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#define ARCH_CPUID_SET 0x1012
static int let_cpuid(int through) { return (int)syscall(SYS_arch_prctl, ARCH_CPUID_SET, through); }

/* Bits of Intel's Software Developer's Manual, volume 2A, CPUID, leaf 7. */
#define BIT(i) (1u << (i))
#define EBX (BIT(16) | BIT(17) | BIT(21) | BIT(26) | BIT(27) | BIT(28) | BIT(30) | BIT(31)) /* F, DQ, IFMA ... VL */
#define ECX (BIT(1) | BIT(6) | BIT(11) | BIT(12) | BIT(14))                                  /* VBMI ... VPOPCNTDQ */
#define EDX (BIT(2) | BIT(3) | BIT(8) | BIT(22) | BIT(23) | BIT(24) | BIT(25))               /* ... FP16, and AMX */
#define EAX_1 (BIT(5) | BIT(21))                                                             /* BF16, AMX-FP16 */
#define EDX_1 (BIT(8) | BIT(19))                                                             /* AMX-COMPLEX, AVX10 */

/* Nobody else gets the signal, which would end programs that handle it, as GCC does. */
typedef int (*Sigaction)(int, const struct sigaction *, struct sigaction *);
static int real_sigaction(int signal, const struct sigaction *action, struct sigaction *old) {
    return ((Sigaction)dlsym(RTLD_NEXT, "sigaction"))(signal, action, old);
}
int sigaction(int signal, const struct sigaction *action, struct sigaction *old) {
    return real_sigaction(signal, signal == SIGSEGV ? NULL : action, old);
}
sighandler_t signal(int signal, sighandler_t handler) {
    struct sigaction old;
    const struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    return sigaction(signal, &action, &old) ? SIG_ERR : old.sa_handler;
}

static void answer(int signal, siginfo_t *info, void *context) {
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    const unsigned char *at = (const unsigned char *)registers[REG_RIP];
    if (info->si_code != SI_KERNEL || at[0] != 0x0f || at[1] != 0xa2) { /* another fault: as without us */
        real_sigaction(signal, &(struct sigaction){.sa_handler = SIG_DFL}, NULL);
        return;
    }
    const unsigned leaf = (unsigned)registers[REG_RAX], part = (unsigned)registers[REG_RCX];
    unsigned a, b, c, d;
    let_cpuid(1);
    __cpuid_count(leaf, part, a, b, c, d);
    let_cpuid(0);
    if (leaf == 7 && part == 0) b &= ~EBX, c &= ~ECX, d &= ~EDX;
    if (leaf == 7 && part == 1) a &= ~EAX_1, d &= ~EDX_1;
    registers[REG_RAX] = a, registers[REG_RBX] = b, registers[REG_RCX] = c, registers[REG_RDX] = d;
    registers[REG_RIP] += 2;
}

__attribute__((constructor)) static void begin(void) {
    struct sigaction action = {.sa_sigaction = answer, .sa_flags = SA_SIGINFO};
    real_sigaction(SIGSEGV, &action, NULL);
    if (let_cpuid(0)) {
        perror("bench.avx2_only: this CPU, or this Linux, can't hide what it has");
        _exit(1);
    }
}
