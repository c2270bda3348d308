//go:build !amd64

package ring

// Elsewhere a proc has no cheap way to know its processor, and never spins.
func knowsProcessor() bool { return false }

func processor() uint32 { return 0 }

func relax(uint32) {}
