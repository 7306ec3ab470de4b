//go:build !linux

package offload

import (
	"errors"
	"os"
)

func openDirect(string, int) (*os.File, error) { return nil, errors.ErrUnsupported }

func lockFile(*os.File) error { return nil }
