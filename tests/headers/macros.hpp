// SPDX-License-Identifier: Apache-2.0
#pragma once

// Macros of headers that programs include before terse, which its names must not meet.

#include <complex.h>
#include <sys/sysmacros.h>
#include <termios.h>

// Those of Qt, when it has its keywords.
#define emit
#define foreach for
#define forever for (;;)
#define signals public
#define slots

// Those of X11/X.h and X11/Xlib.h, but for names that say which thing of a window system they mean.
#define Above 0
#define AllPlanes ((unsigned long)~0L)
#define AllTemporary 0L
#define AllocAll 1
#define AllocNone 0
#define AlreadyGrabbed 1
#define Always 2
#define AnyButton 0L
#define AnyKey 0L
#define AnyModifier (1 << 15)
#define AnyPropertyType 0L
#define Below 1
#define Bool int
#define BottomIf 3
#define ClientMessage 33
#define Complex 0
#define Convex 2
#define CopyFromParent 0L
#define CurrentTime 0L
#define CursorShape 0
#define DestroyAll 0
#define DirectColor 5
#define DontAllowExposures 0
#define EvenOddRule 0
#define Expose 12
#define False 0
#define FirstExtensionError 128
#define GenericEvent 35
#define GraphicsExpose 13
#define GrayScale 1
#define IncludeInferiors 1
#define InputFocus 1L
#define InputOnly 2
#define InputOutput 1
#define LASTEvent 36
#define LastExtensionError 255
#define LowerHighest 1
#define NoExpose 14
#define NoSymbol 0L
#define Nonconvex 1
#define None 0L
#define NotUseful 0
#define Opposite 4
#define ParentRelative 1L
#define PropertyDelete 1
#define PropertyNewValue 0
#define PseudoColor 3
#define RaiseLowest 0
#define Status int
#define StippleShape 2
#define Success 0
#define TileShape 1
#define TopIf 2
#define True 1
#define TrueColor 4
#define Unsorted 0
#define WhenMapped 1
#define WindingRule 1
