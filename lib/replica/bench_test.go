package replica

import (
	"runtime"
	"testing"
	"time"
)

// What one command of 100 bytes costs, with 1 and with 64 clients at a time.
func BenchmarkPropose(b *testing.B) {
	command := append([]byte("key="), make([]byte, 96)...)
	for _, c := range []struct {
		name    string
		members int
		durable bool
	}{{"one", 1, false}, {"three", 3, false}, {"one-durable", 1, true}, {"three-durable", 3, true}} {
		for _, clients := range []int{1, 64} {
			b.Run(c.name+map[int]string{1: "/clients=1", 64: "/clients=64"}[clients], func(b *testing.B) {
				dir := ""
				if c.durable {
					dir = b.TempDir()
				}
				n := newNetwork(b, 1)
				all := n.group(b, c.members, dir, func(cfg *Config) { cfg.Tick = 50 * time.Millisecond })
				l := leader(b, all)
				b.ReportAllocs()
				b.ResetTimer()
				if clients == 1 {
					for range b.N {
						if _, err := l.Propose(b.Context(), Session{}, command); err != nil {
							b.Fatal(err)
						}
					}
					return
				}
				b.SetParallelism(clients / runtime.GOMAXPROCS(0))
				b.RunParallel(func(p *testing.PB) {
					for p.Next() {
						if _, err := l.Propose(b.Context(), Session{}, command); err != nil {
							b.Error(err)
							return
						}
					}
				})
			})
		}
	}
}
