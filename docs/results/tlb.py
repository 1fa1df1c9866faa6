"""How much a TLB hides of `cache` on `genoa-2tier` in windows of 0.6 ms, by Che's approximation of an LRU.

hmkeeper simulate --machine tests/fixtures/held-out/genoa-2tier.toml --workload tests/fixtures/held-out/cache.toml \\
    --policy adaptive --coarse 32 --json >cache.json; python3 docs/results/tlb.py cache.json
"""
import json
import math
import random
import sys

THREADS, ENTRIES, WINDOW = 48, 2048, 0.0006
run = json.load(open(sys.argv[1]))[0]
rate = sum(run["tier_accesses"]) / run["total_seconds"]
# 280 GiB of items of 1 MiB by Zipf's law (0.9), two to a page; 12 GiB of counters; a hundredth of 60 GiB of log.
random.seed(1)
weights = [(rank + 1) ** -0.9 for rank in range(2 * 280 * 512)]
random.shuffle(weights)
total = sum(weights)
pages = [0.7 * rate * (a + b) / total for a, b in zip(weights[::2], weights[1::2])]
pages += [0.2 * rate / 6144] * 6144 + [0.1 * rate / 307] * 307
low, high = 1e-7, 1.0
for _ in range(60):
    time = math.sqrt(low * high)
    if sum(1 - math.exp(-page / THREADS * time) for page in pages) < ENTRIES:
        low = time
    else:
        high = time


def seen(rate):
    return 1 - math.exp(-rate * WINDOW)


walks = [(page, page * math.exp(-page / THREADS * low)) for page in pages]
hidden = [page for page, walked in walks if seen(page) - seen(walked) > 0.1]
print(f"{rate:.3g} accesses per second; a page stays for {low:.3g} s without one")
print(f"{len(hidden)} of {len(pages)} pages are seen less often by a tenth or more; {sum(hidden) / rate:.3f} of all accesses")
