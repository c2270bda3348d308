package kernel

import (
	"context"
	"sync"
	"time"

	"sigmaos.dev/identity"
	"sigmaos.dev/state"
)

// peerLeave: the machine that calls is being stopped.
const peerLeave = "leave"

// leaveMost is how long other machines may take to hear that this one is being stopped.
const leaveMost = 500 * time.Millisecond

// leave does what is done before this machine stops, while all of it still works. Other machines are told, so that the end of
// its life is known to be meant. Who does not hear it in time takes the machine for lost.
func (k *Kernel) leave() {
	if !k.registered() {
		return
	}
	ctx, cancel := context.WithTimeout(k.ctx, leaveMost)
	defer cancel()
	var all sync.WaitGroup
	for _, m := range k.others() {
		all.Go(func() { k.ask(ctx, m, peerLeave, nil, nil) })
	}
	all.Wait()
}

func (k *Kernel) peerLeave(_ context.Context, from identity.Subject, _ []byte) ([]byte, error) {
	k.own.mu.Lock()
	defer k.own.mu.Unlock()
	k.own.left[from.Machine] = from.Incarnation
	return nil, nil
}

// lostOrLeft names the event that the life of a member is over.
func (m *membership) lostOrLeft(x identity.Member) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if life, said := m.left[x.Machine]; said && life == x.Incarnation {
		return state.EventMachineLeft
	}
	return state.EventMachineLost
}
