package sim

import "testing"

// BenchmarkLarge is ten thousand machines with procs of a thousand realms, a hundredth of them
// latency-critical: what "sigma sim" is asked for at most, for a tenth of the time. GOGC=250 is
// what sigma sim sets.
func BenchmarkLarge(b *testing.B) {
	for range b.N {
		if _, err := New(Config{Seed: 1, Machines: 10_000, Procs: 100_000, Realms: 1000, LC: 0.01}).Run(); err != nil {
			b.Fatal(err)
		}
	}
}
