package ledger

import (
	"os"
	"strings"
	"testing"
)

// Goal: what the walk-through shows is what is compiled and tested.
func TestGuide(t *testing.T) {
	guide, err := os.ReadFile("../../docs/guide/calls.md")
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, name := range []string{"ledger.proto", "book.go", "../ledgerserver/main.go", "../ledgerclient/main.go"} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	shown := 0
	for i, block := range strings.Split(string(guide), "```") {
		kind, text, _ := strings.Cut(block, "\n")
		if i%2 == 0 || kind != "go" && kind != "proto" {
			continue
		}
		shown++
		if !strings.Contains(all.String(), text) {
			t.Errorf("no example has:\n%s", text)
		}
	}
	if shown < 5 {
		t.Errorf("the guide shows %d pieces of code", shown)
	}
}
