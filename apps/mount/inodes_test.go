package mount

import (
	"testing"

	"sigmaos.dev/sigma"
)

// There are never more nodes than the bound; before that the kernel is asked to forget those that
// were looked up least recently.
func TestInodes(t *testing.T) {
	c, dir := newInodes(), &node{}
	created := make([]*node, inodesMax)
	for i := range created {
		created[i] = &node{}
		if err := c.touch(dir, created[i]); err != nil {
			t.Fatalf("node %d: %v", i, err)
		}
		if notice := len(c.full) > 0; notice != (i >= inodesFull) {
			t.Fatalf("at node %d there is a notice: %v", i, notice)
		}
	}
	if err := c.touch(dir, &node{}); sigma.KindOf(err) != sigma.KindBusy {
		t.Errorf("one too many: %v, want busy", err)
	}
	if err := c.touch(dir, created[0]); err != nil {
		t.Errorf("one that is known: %v", err)
	}
	if got := c.oldest(); got != created[1] {
		t.Error("the oldest is not the one that was looked up least recently")
	}
	c.forget(created[1])
	c.forget(created[1])
	if err := c.touch(created[2], &node{}); err != nil {
		t.Errorf("when one was forgotten: %v", err)
	}
	if got := c.oldest(); got != created[3] {
		t.Error("a directory in which a name was looked up is the oldest")
	}
	for _, n := range created {
		c.forget(n)
	}
	if got := c.oldest(); got != nil || c.all.Len() != 1 {
		t.Errorf("%d are left, and the oldest of few is %v", c.all.Len(), got)
	}
}
