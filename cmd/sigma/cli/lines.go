package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"sigmaos.dev/files"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// Lines reads a file of the realm that has a JSON value in each line.
func Lines[T any](ctx context.Context, c *sdk.Client, path string) ([]T, error) {
	var text bytes.Buffer
	if err := files.OfRealm(c).Content(ctx, path, &text); err != nil {
		return nil, err
	}
	return LinesOf[T](path, text.Bytes())
}

// LinesOf reads the JSON value in each line of what is from.
func LinesOf[T any](from string, text []byte) ([]T, error) {
	all := []T{}
	for d := json.NewDecoder(bytes.NewReader(text)); d.More(); {
		var one T
		if err := d.Decode(&one); err != nil {
			return nil, sigma.Wrap("sigma.lines", from, err)
		}
		all = append(all, one)
	}
	return all, nil
}

func Hours(d time.Duration) string { return fmt.Sprintf("%dh", int(d.Hours())) }
