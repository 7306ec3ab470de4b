//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package hub

import (
	"errors"
	"os"
)

func flock(*os.File) (bool, error) { return false, errors.ErrUnsupported }
