package kernel

import "sigmaos.dev/identity"

// self is this machine in its present life. Its incarnation is 0 before it is registered.
func (k *Kernel) self() identity.Subject {
	if !k.registered() {
		return identity.Subject{Machine: k.cfg.Machine}
	}
	return k.id.Self()
}

// registered says whether this machine has an identity. Only who has seen that, or Config.Ready, may use k.id and k.node.
func (k *Kernel) registered() bool {
	select {
	case <-k.enrolled:
		return true
	default:
		return false
	}
}
