package ring

import "sync"

func cpuid(leaf uint32) (edx uint32)
func processor() uint32
func relax(n uint32)

// knowsProcessor says whether processor can be called: RDTSCP is an option of old processors (CPUID
// 80000001H, bit 27 of EDX).
var knowsProcessor = sync.OnceValue(func() bool { // under a hypervisor CPUID is slow
	const extended, rdtscp = 0x80000001, 1 << 27
	return cpuid(extended)&rdtscp != 0
})
