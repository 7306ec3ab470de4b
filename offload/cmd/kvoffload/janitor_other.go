//go:build !linux

package main

import (
	"errors"
	"io"
)

var errLinux = errors.New("janitor, ls and check-config run on Linux alone")

func janitorCommand([]string, io.Writer) error { return errLinux }
func ls([]string, io.Writer) error             { return errLinux }
func checkConfig([]string, io.Writer) error    { return errLinux }
