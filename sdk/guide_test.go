package sdk

import (
	"os"
	"strings"
	"testing"
)

// TestGuide: the longer pieces of code in the guide are those of programs that are tested.
func TestGuide(t *testing.T) {
	guide, err := os.ReadFile("../docs/guide/sdk.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, example := range []string{"tree", "watcher"} {
		code, err := os.ReadFile("../examples/" + example + "/main.go")
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for i, block := range strings.Split(string(guide), "```") {
			if text, ok := strings.CutPrefix(block, "go\n"); ok && i%2 == 1 && strings.Contains(string(code), text) {
				found = true
			}
		}
		if !found {
			t.Errorf("the guide has no code of examples/%s", example)
		}
	}
}
