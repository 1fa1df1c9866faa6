/*
 * tierlat: a QEMU (TCG) plugin that gives each memory node of a guest its own
 * latency and bandwidth, and counts the cache misses that each node serves.
 *
 * Every load and store of the guest goes through a small filter of virtual
 * lines per vCPU (stands for L1) and a hashed 8-way write-back cache of physical
 * lines per socket (stands for the last-level cache, shared by its vCPUs). A
 * miss is charged by the path from the vCPU's node to the node behind the line:
 *
 *     wait = scale * max(latency, queueing for bandwidth)
 *
 * spent in a spin, so that wall-clock time inside of the guest shows it. A guest
 * under TCG computes about 20 times slower than its host, hence the scale:
 * memory and computing keep their proportion.
 *
 * Latency. A miss on its own waits for all of it, times 1 + 0.3 u / (1 - u),
 * u <= 0.95 the utilisation of the path in the last millisecond by the other vCPUs: the
 * curve of the project's simulator (docs/simulator.md).
 * A miss that continues a stream (the line after one that missed lately) waits for
 * a sixteenth of it, as a prefetcher keeps about sixteen lines under way.
 *
 * Bandwidth. A schedule of tokens per node, and one per path that is narrower
 * than its node; one for both directions, or each its own (duplex=NODE:full). A
 * store that misses reads the line; a written line that gives way is written
 * back, and its vCPU waits when more than QUEUE such lines are under way. What
 * was not used lately may be used later, up to QUEUE lines.
 *
 * Arguments (key=value):
 *   node=SIZE_MIB:VCPUS  once per node, in order; vCPUs are numbered through
 *   path=FROM:TO:READ_NS:WRITE_NS:READ_MBS:WRITE_MBS   a missing path is free;
 *                        0 = no latency, or unlimited bandwidth
 *   duplex=NODE:full     reads and writes of that node do not share bandwidth
 *   scale=N              default 20; 0 = only count
 *   llc_kib=N            the modelled cache of each socket, a power of two, default 1024
 *   counters=FILE        see "enum word" below; updated live; the guest may read it
 *                        and write the words from CHARGING on
 *   start=off            begin with charging off (to boot and to set up quickly)
 *   count=off            and without counting: none of the guest's code is instrumented
 *                        until the word COUNTING says 1, which takes half of the time
 *   low_mib=N            QEMU 8.2 and later, which tells guest-physical addresses: so
 *                        much of the memory lies below 4 GiB, the rest above
 *
 * Give the guest's CPU erms=off,fsrm=off: QEMU runs `rep movsb` byte by byte.
 * Build: cc -O2 -shared -fPIC -o tierlat.so tierlat.c   (no QEMU headers needed;
 * the few functions of the plugin API, versions 1 to 4, are declared below).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include <x86intrin.h>

typedef uint64_t plugin_id;
typedef uint32_t mem_info;
struct qemu_info { const char *target; struct { int min, cur; } version; };
enum { CB_NO_REGS = 0, MEM_RW = 3 };
extern void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id, void (*)(plugin_id, void *tb));
extern void qemu_plugin_register_vcpu_idle_cb(plugin_id, void (*)(plugin_id, unsigned cpu));
extern void qemu_plugin_reset(plugin_id, void (*)(plugin_id));
extern size_t qemu_plugin_tb_n_insns(const void *tb);
extern void *qemu_plugin_tb_get_insn(const void *tb, size_t i);
extern uint64_t qemu_plugin_insn_vaddr(const void *insn);
extern size_t qemu_plugin_insn_size(const void *insn);
extern void qemu_plugin_register_vcpu_mem_cb(void *insn, void (*)(unsigned cpu, mem_info, uint64_t vaddr, void *),
                                             int flags, int rw, void *data);
extern bool qemu_plugin_mem_is_store(mem_info);
extern void qemu_plugin_register_vcpu_insn_exec_cb(void *insn, void (*)(unsigned cpu, void *), int flags, void *data);
extern void *qemu_plugin_get_hwaddr(mem_info, uint64_t vaddr);
extern bool qemu_plugin_hwaddr_is_io(const void *);
extern uint64_t qemu_plugin_hwaddr_phys_addr(const void *);

#define EXPORT __attribute__((visibility("default")))
EXPORT int qemu_plugin_version = 1;

/* QEMU 9.0 and later load no plugin of version 1; what is used here is the same in 2. */
__attribute__((constructor)) static void choose_version(void)
{
    if (dlsym(RTLD_DEFAULT, "qemu_plugin_num_vcpus"))
        qemu_plugin_version = 2;
}

enum { MAX_NODES = 8, MAX_VCPUS = 32, FILTER_LINES = 512, WAYS = 8, STREAMS = 16, LINE = 64 };
enum { QUEUE = 64 };          /* lines: a page of 4 KiB */
enum { STREAM_OVERLAP = 16 }; /* lines that a stream has under way: MLP of a stream */
#define LOAD_WINDOW_NS 1e6   /* wall-clock time over which utilisation is measured */
#define QUEUEING 0.3         /* of the curve of loaded latency */
#define MAX_LOAD 0.95
#define DIRTY (1ull << 63)   /* in a tag of the cache: written since it was read */
#define BELOW_4G (4096ull << 20)

/* The file of counters: 512 little-endian u64. */
enum word {
    WORD_MAGIC, WORD_NODES, WORD_SCALE, /* scale * 1000 */
    FIRST_NODE = 16, NODE_WORDS = 16, /* node n: its words from FIRST_NODE + n * NODE_WORDS on */
    USER_READS = 0, USER_WRITES, KERNEL_READS, KERNEL_WRITES, /* misses */
    USER_NS, KERNEL_NS,  /* waited, not scaled */
    STREAMED,            /* misses that continued a stream */
    WRITTEN_BACK,        /* lines */
    WATCHED_READS, WATCHED_WRITES, WATCHED_NS, /* by user code, at watched addresses */
    CHARGING = 256,      /* 1 or 0 */
    COUNTING,            /* the same: whether misses are to be counted, once 1 for good */
    COUNTED,             /* and whether they are */
    WATCH = 272, WATCHES = 8, /* ranges of virtual addresses: start, end */
    WORDS = 512
};
#define MAGIC 0x74616c7265697403ull

struct schedule { /* of tokens, in TSC ticks */
    uint64_t busy_until, since, used, own[MAX_VCPUS];
    float loaded[MAX_VCPUS]; /* what each vCPU's latency grows by: QUEUEING u / (1 - u) */
} __attribute__((aligned(64)));
struct path {
    uint64_t latency[2], service[2]; /* ticks, scaled; index 1 = write */
    bool narrow;                     /* its own schedule counts beside the node's */
    struct schedule schedule[2];
};
struct node {
    uint64_t first, end;
    bool full_duplex;
    uint64_t service[2]; /* as the nearest sees it */
    struct schedule schedule[2];
    struct path from[MAX_NODES];
};
struct vcpu {
    unsigned home, victim;
    uint64_t filter[FILTER_LINES]; /* virtual line * 2 + whether it was written */
    uint64_t stream[STREAMS];
} __attribute__((aligned(128)));

static struct node nodes[MAX_NODES];
static struct vcpu vcpus[MAX_VCPUS];
static uint64_t *llc[MAX_NODES]; /* of each socket: sets of WAYS tags, the newest first */
static unsigned nr_nodes, nr_vcpus, llc_sets;
static double ticks_per_ns, scale = 20;
static uint64_t load_window, ns_fraction; /* ns_fraction: unscaled ns per tick * 2^32 */
static int api_version;
static uint64_t low_bytes;
static volatile uint64_t *counters;

static void add(volatile uint64_t *p, uint64_t v) { __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }
static uint64_t load(uint64_t *p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
static void store(uint64_t *p, uint64_t v) { __atomic_store_n(p, v, __ATOMIC_RELAXED); }
static uint64_t hash(uint64_t line) { return line * 0x9e3779b97f4a7c15ull >> 32; }
static uint64_t later(uint64_t a, uint64_t b) { return a > b ? a : b; }

static struct node *node_of(uint64_t phys)
{
    for (unsigned i = 0; i < nr_nodes; i++)
        if (phys >= nodes[i].first && phys < nodes[i].end)
            return &nodes[i];
    return NULL;
}

/* At the end of a window: how loaded each vCPU sees it in the next. What it asked for itself is
 * none of it: it waits for its misses one by one, and its streams queue for their bandwidth. */
static void measure_load(struct schedule *s, uint64_t now)
{
    uint64_t since = load(&s->since);
    if (now - since < load_window ||
        !__atomic_compare_exchange_n(&s->since, &since, now, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        return;
    double used = __atomic_exchange_n(&s->used, 0, __ATOMIC_RELAXED);
    for (unsigned i = 0; i < nr_vcpus; i++) {
        double others = used - __atomic_exchange_n(&s->own[i], 0, __ATOMIC_RELAXED);
        double u = others <= 0 ? 0 : others / (now - since);
        if (u > MAX_LOAD)
            u = MAX_LOAD;
        s->loaded[i] = QUEUEING * u / (1 - u);
    }
}

/* Takes the next free time of a schedule for one line; when that ends. */
static uint64_t take(struct schedule *s, uint64_t service, unsigned cpu, uint64_t now)
{
    uint64_t busy = load(&s->busy_until), done;
    measure_load(s, now);
    do
        done = later(busy, now - QUEUE * service) + service;
    while (!__atomic_compare_exchange_n(&s->busy_until, &busy, done, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    add(&s->used, service);
    add(&s->own[cpu], service);
    return done;
}

/* One line read (write = 0) or written over a path: when the slower of the node and the path is done. */
static uint64_t transfer(struct node *n, struct path *p, int write, unsigned cpu, uint64_t now)
{
    int direction = n->full_duplex ? write : 0;
    uint64_t done = n->service[write] ? take(&n->schedule[direction], n->service[write], cpu, now) : now;
    return p->narrow ? later(done, take(&p->schedule[direction], p->service[write], cpu, now)) : done;
}

/* Looks a line up in a socket's cache and puts it there; what gave way for it, or 0. */
static bool hit(uint64_t *cache, uint64_t line, bool write, uint64_t *victim)
{
    uint64_t *set = cache + (hash(line) & (llc_sets - 1)) * WAYS;
    uint64_t first = load(set), old = first;
    if ((first & ~DIRTY) == line) {
        if (write)
            store(set, line | DIRTY);
        return true;
    }
    for (int w = 1; w < WAYS; w++) {
        uint64_t t = load(set + w);
        store(set + w, old);
        if ((t & ~DIRTY) == line) {
            store(set, t | (write ? DIRTY : 0));
            return true;
        }
        old = t;
    }
    store(set, line | (write ? DIRTY : 0));
    *victim = old;
    return false;
}

/* Whether a missing line follows one that missed lately; remembers it. */
static bool streams(struct vcpu *v, uint64_t line)
{
    for (int i = 0; i < STREAMS; i++)
        if (v->stream[i] == line) {
            v->stream[i]++;
            return true;
        }
    v->stream[v->victim++ % STREAMS] = line + 1;
    return false;
}

static bool watched(uint64_t vaddr)
{
    for (unsigned i = 0; i < WATCHES; i++)
        if (vaddr >= counters[WATCH + 2 * i] && vaddr < counters[WATCH + 2 * i + 1])
            return true;
    return false;
}

/* A miss: counts it and, where asked for, lets its time pass. */
static void miss(unsigned cpu, struct node *n, uint64_t vaddr, uint64_t line, uint64_t victim, bool write, bool kernel)
{
    struct vcpu *v = &vcpus[cpu];
    bool stream = streams(v, line), target = !kernel && watched(vaddr);
    volatile uint64_t *c = counters + FIRST_NODE + NODE_WORDS * (n - nodes);
    add(&c[2 * kernel + write], 1);
    if (stream)
        add(&c[STREAMED], 1);
    if (target)
        add(&c[WATCHED_READS + write], 1);
    struct node *evicted = victim & DIRTY ? node_of((victim & ~DIRTY) * LINE) : NULL;
    if (evicted)
        add(&counters[FIRST_NODE + NODE_WORDS * (evicted - nodes) + WRITTEN_BACK], 1);
    if (!counters[CHARGING] || !scale)
        return;
    uint64_t now = __rdtsc(), done = now;
    struct path *p = &n->from[v->home];
    if (evicted) {
        struct path *back = &evicted->from[v->home];
        uint64_t written = transfer(evicted, back, 1, cpu, now);
        done = later(done, written - QUEUE * later(evicted->service[1], back->service[1]));
    }
    done = later(done, transfer(n, p, 0, cpu, now));
    uint64_t latency = p->latency[write];
    if (stream) {
        latency /= STREAM_OVERLAP;
    } else {
        float loaded = n->schedule[0].loaded[cpu];
        if (p->narrow && loaded < p->schedule[0].loaded[cpu])
            loaded = p->schedule[0].loaded[cpu];
        latency += latency * loaded;
    }
    done = later(done, now + latency);
    while (__rdtsc() < done)
        _mm_pause();
    uint64_t ns = (done - now) * ns_fraction >> 32;
    add(&c[USER_NS + kernel], ns);
    if (target)
        add(&c[WATCHED_NS], ns);
}

/* One for loads and stores: QEMU 7.2 calls one for stores alone at loads. */
static void on_access(unsigned cpu, mem_info info, uint64_t vaddr, void *kernel)
{
    struct vcpu *v = &vcpus[cpu];
    uint64_t line = vaddr / LINE, tag = line * 2, *f = &v->filter[hash(line) % FILTER_LINES];
    if (*f == (tag | 1))
        return;
    bool write = qemu_plugin_mem_is_store(info);
    if (*f == tag && !write)
        return;
    *f = tag | write;
    void *hw = qemu_plugin_get_hwaddr(info, vaddr);
    if (!hw || qemu_plugin_hwaddr_is_io(hw))
        return;
    uint64_t phys = qemu_plugin_hwaddr_phys_addr(hw), victim = 0;
    if (low_bytes && phys >= BELOW_4G)
        phys -= BELOW_4G - low_bytes;
    struct node *n;
    if (!hit(llc[v->home], phys / LINE, write, &victim) && (n = node_of(phys)))
        miss(cpu, n, vaddr, phys / LINE, victim, write, kernel != NULL);
}

/* Another address space: what the filter knows are other lines there. */
static void on_cr3(unsigned cpu, void *unused)
{
    (void)unused;
    memset(vcpus[cpu].filter, 0xff, sizeof vcpus[cpu].filter);
}

/* mov %reg, %cr3 */
static bool writes_cr3(void *insn)
{
    uint8_t bytes[16] = { 0 };
    size_t size = qemu_plugin_insn_size(insn);
    if (size < 3 || size > 4)
        return false;
    if (api_version >= 3) {
        size_t (*read)(const void *, void *, size_t) = dlsym(RTLD_DEFAULT, "qemu_plugin_insn_data");
        read(insn, bytes, sizeof bytes);
    } else {
        const void *(*data)(const void *) = dlsym(RTLD_DEFAULT, "qemu_plugin_insn_data");
        memcpy(bytes, data(insn), size);
    }
    uint8_t *b = bytes + (size == 4);
    return (size == 3 || bytes[0] >> 4 == 4) && b[0] == 0x0f && b[1] == 0x22 && (b[2] & 0xf8) == 0xd8;
}

static void on_translate(plugin_id id, void *tb)
{
    (void)id;
    for (size_t i = 0, n = qemu_plugin_tb_n_insns(tb); i < n; i++) {
        void *insn = qemu_plugin_tb_get_insn(tb, i);
        uintptr_t kernel = qemu_plugin_insn_vaddr(insn) >> 63;
        qemu_plugin_register_vcpu_mem_cb(insn, on_access, CB_NO_REGS, MEM_RW, (void *)kernel);
        if (kernel && writes_cr3(insn))
            qemu_plugin_register_vcpu_insn_exec_cb(insn, on_cr3, CB_NO_REGS, NULL);
    }
}

/* What is translated from now on is instrumented. All vCPUs are held, and have no translations. */
static void count(plugin_id id)
{
    counters[COUNTED] = 1;
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_translate);
}

/* A vCPU has nothing to do, as each has now and then: the guest may have asked for it. There is no
 * way back: QEMU 7.2 may call what it has just thrown away, and aborts. */
static void on_idle(plugin_id id, unsigned cpu)
{
    (void)cpu;
    if (counters[COUNTING])
        qemu_plugin_reset(id, count);
}

static double measure_tsc(void)
{
    struct timespec a, b, nap = { 0, 50000000 };
    clock_gettime(CLOCK_MONOTONIC, &a);
    uint64_t t = __rdtsc();
    nanosleep(&nap, NULL);
    clock_gettime(CLOCK_MONOTONIC, &b);
    return (__rdtsc() - t) / ((b.tv_sec - a.tv_sec) * 1e9 + (b.tv_nsec - a.tv_nsec));
}

static int fail(const char *what, const char *which) { return fprintf(stderr, "tierlat: %s%s\n", what, which), 1; }

EXPORT int qemu_plugin_install(plugin_id id, const struct qemu_info *info, int argc, char **argv)
{
    static double ns[MAX_NODES][MAX_NODES][4]; /* to, from: read, write latency; read, write service */
    unsigned long mib, cpus, from, to, v[4], llc_kib = 1024, low_mib = 0;
    const char *file = NULL;
    bool charging = true, counting = true;
    uint64_t offset = 0;
    char tail;
    for (int i = 0; i < argc; i++) {
        if (sscanf(argv[i], "node=%lu:%lu%c", &mib, &cpus, &tail) == 2) {
            if (nr_nodes == MAX_NODES || nr_vcpus + cpus > MAX_VCPUS)
                return fail("too many nodes or CPUs: ", argv[i]);
            nodes[nr_nodes].first = offset;
            nodes[nr_nodes].end = offset += mib << 20;
            while (cpus--)
                vcpus[nr_vcpus++].home = nr_nodes;
            nr_nodes++;
        } else if (sscanf(argv[i], "path=%lu:%lu:%lu:%lu:%lu:%lu%c", &from, &to, &v[0], &v[1], &v[2], &v[3], &tail) == 6) {
            if (from >= MAX_NODES || to >= MAX_NODES)
                return fail("no such node: ", argv[i]);
            for (int w = 0; w < 2; w++) {
                ns[to][from][w] = v[w];
                ns[to][from][2 + w] = v[2 + w] ? LINE * 1e3 / v[2 + w] : 0;
            }
        } else if (sscanf(argv[i], "duplex=%lu:ful%c", &to, &tail) == 2 && tail == 'l' && to < MAX_NODES) {
            nodes[to].full_duplex = true;
        } else if (sscanf(argv[i], "scale=%lf%c", &scale, &tail) == 1) {
        } else if (sscanf(argv[i], "llc_kib=%lu%c", &llc_kib, &tail) == 1) {
        } else if (sscanf(argv[i], "low_mib=%lu%c", &low_mib, &tail) == 1) {
        } else if (!strcmp(argv[i], "start=off")) {
            charging = false;
        } else if (!strcmp(argv[i], "count=off")) {
            counting = false;
        } else if (!strncmp(argv[i], "counters=", 9)) {
            file = argv[i] + 9;
        } else {
            return fail("bad argument ", argv[i]);
        }
    }
    llc_sets = llc_kib * 1024 / LINE / WAYS;
    if (!llc_sets || llc_sets & (llc_sets - 1))
        return fail("llc_kib must be a power of two", "");
    api_version = info->version.cur;
    low_bytes = low_mib << 20;
    ticks_per_ns = measure_tsc();
    load_window = LOAD_WINDOW_NS * ticks_per_ns;
    ns_fraction = scale ? 0x1p32 / ticks_per_ns / scale : 0;
    for (unsigned t = 0; t < nr_nodes; t++) {
        struct node *n = &nodes[t];
        /* Before 8.2 QEMU tells the offset among all memory and that within the guest's,
         * added up: what starts at X shows at 2X. */
        if (!low_bytes) {
            n->end += n->first;
            n->first *= 2;
        }
        for (int w = 0; w < 2; w++) {
            double best = 0;
            for (unsigned s = 0; s < nr_nodes; s++) {
                n->from[s].latency[w] = ns[t][s][w] * scale * ticks_per_ns;
                n->from[s].service[w] = ns[t][s][2 + w] * scale * ticks_per_ns;
                if (ns[t][s][2 + w] && (!best || ns[t][s][2 + w] < best))
                    best = ns[t][s][2 + w];
            }
            n->service[w] = best * scale * ticks_per_ns;
        }
        for (unsigned s = 0; s < nr_nodes; s++)
            n->from[s].narrow = n->from[s].service[0] > n->service[0] || n->from[s].service[1] > n->service[1];
    }
    for (unsigned c = 0; c < MAX_VCPUS; c++)
        on_cr3(c, NULL);
    for (unsigned s = 0; s < nr_nodes; s++) {
        if (!(llc[s] = aligned_alloc(LINE, llc_sets * WAYS * sizeof(uint64_t))))
            return fail("no memory", "");
        /* no line has this tag, and nothing of it is to be written back */
        memset(llc[s], 0x7f, llc_sets * WAYS * sizeof(uint64_t));
    }
    int fd = -1;
    if (file && ((fd = open(file, O_RDWR | O_CREAT | O_TRUNC, 0644)) < 0 || ftruncate(fd, WORDS * 8)))
        return perror(file), 1;
    counters = mmap(NULL, WORDS * 8, PROT_READ | PROT_WRITE, fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, fd, 0);
    if (counters == (void *)MAP_FAILED)
        return perror("tierlat: mmap"), 1;
    counters[WORD_MAGIC] = MAGIC;
    counters[WORD_NODES] = nr_nodes;
    counters[WORD_SCALE] = scale * 1000;
    counters[CHARGING] = charging;
    counters[COUNTING] = counting;
    if (counting)
        count(id);
    else
        qemu_plugin_register_vcpu_idle_cb(id, on_idle);
    return 0;
}
